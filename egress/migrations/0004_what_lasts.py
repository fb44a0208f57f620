from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('egress', '0003_dataplaneevent_process'),
    ]

    operations = [
        migrations.AddField(
            model_name='publication',
            name='proxy_problems',
            field=models.JSONField(blank=True, default=list, help_text='What the egress proxy says is wrong now, whatever is published.'),
        ),
        migrations.AddField(
            model_name='recordcursor',
            name='lost',
            field=models.PositiveBigIntegerField(default=0, help_text='So many, of all its runs, were never read.'),
        ),
    ]
