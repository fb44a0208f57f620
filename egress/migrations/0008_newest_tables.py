from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("egress", "0007_refusals_to_ask_for"),
    ]

    operations = [
        migrations.AddIndex(
            model_name="routetableversion",
            index=models.Index(fields=["-created_at", "-id"], name="egress_rout_created_00c547_idx"),
        ),
    ]
