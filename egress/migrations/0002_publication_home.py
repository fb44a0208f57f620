from django.db import migrations, models

from ._home import home_id


def bottles_of_this_home(apps, schema_editor):
    """Until now a database was one home's: it is the one that migrates it."""
    publications = apps.get_model("egress", "Publication").objects.filter(home="")
    if publications.exists():
        publications.update(home=home_id())


class Migration(migrations.Migration):
    dependencies = [("egress", "0001_initial")]

    operations = [
        migrations.AddField(
            model_name="publication",
            name="home",
            field=models.CharField(
                default="", help_text="Where the bottle was made: its proxy serves it.", max_length=32
            ),
            preserve_default=False,
        ),
        migrations.RunPython(bottles_of_this_home, migrations.RunPython.noop),
    ]
