from django.db import migrations, models

from ._home import home_id


def processes_of_this_home(apps, schema_editor):
    """Until now they were told apart by their number alone: they are those of the home that migrates."""
    cursors, events = (apps.get_model("egress", name).objects for name in ("RecordCursor", "DataPlaneEvent"))
    kept = list(cursors.values("pk", "boot", "number", "lost"))
    if kept or events.exists():
        events.update(home=home_id())
    # Made anew, because their keys were given by us: the database does not know that these are taken.
    cursors.all().delete()
    for cursor in kept:
        cursors.create(home=home_id(), process=cursor.pop("pk") - 1, **cursor)


class Migration(migrations.Migration):
    dependencies = [("egress", "0004_what_lasts")]

    operations = [
        migrations.AddField(
            model_name="dataplaneevent",
            name="home",
            field=models.CharField(default="", max_length=32),
            preserve_default=False,
        ),
        migrations.AddField(
            model_name="recordcursor",
            name="home",
            field=models.CharField(default="", max_length=32),
            preserve_default=False,
        ),
        migrations.AddField(
            model_name="recordcursor",
            name="process",
            field=models.PositiveSmallIntegerField(
                default=0, help_text="Which one of that home, counted from 0."
            ),
            preserve_default=False,
        ),
        migrations.RunPython(processes_of_this_home, migrations.RunPython.noop),
        migrations.AddConstraint(
            model_name="recordcursor",
            constraint=models.UniqueConstraint(fields=("home", "process"), name="one_cursor_per_process"),
        ),
    ]
