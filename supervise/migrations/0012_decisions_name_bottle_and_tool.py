import django.db.models.deletion
from django.db import migrations, models

FILL = """
UPDATE supervise_decision SET
    bottle_id = (SELECT bottle_id FROM supervise_proposal WHERE id = supervise_decision.proposal_id),
    tool = (SELECT tool FROM supervise_proposal WHERE id = supervise_decision.proposal_id)
"""


class Migration(migrations.Migration):
    """The columns are made required in the next migration: PostgreSQL alters no table with unchecked keys."""

    dependencies = [
        ("botbottle", "0003_supervise"),
        ("supervise", "0011_moved_at_is_in_the_audit"),
    ]

    operations = [
        migrations.AddField(
            model_name="decision",
            name="bottle",
            field=models.ForeignKey(
                db_index=False,
                editable=False,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="decisions",
                to="botbottle.bottle",
            ),
        ),
        migrations.AddField(
            model_name="decision",
            name="tool",
            field=models.CharField(editable=False, max_length=20, null=True),
        ),
        migrations.RunSQL(FILL, migrations.RunSQL.noop),
    ]
