from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('egress', '0002_publication_home'),
    ]

    operations = [
        migrations.AddField(
            model_name='dataplaneevent',
            name='process',
            field=models.PositiveSmallIntegerField(default=0, help_text='Which egress process, counted from 0.'),
        ),
    ]
