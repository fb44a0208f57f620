from django.db import migrations

from supervise.access import roles


def grant(apps, schema_editor):
    roles.grant(apps)


class Migration(migrations.Migration):

    dependencies = [
        ('auth', '0012_alter_user_first_name_max_length'),
        ('contenttypes', '0002_remove_content_type_name'),
        ('botbottle', '0002_running'),
        ('egress', '0001_initial'),
        ('supervise', '0003_access_and_webhooks'),
    ]

    operations = [migrations.RunPython(grant, migrations.RunPython.noop)]
