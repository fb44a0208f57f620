import django.db.models.deletion
from django.db import migrations, models

TOOLS = [
    ("egress-block", "Egress"),
    ("pipelock-block", "Gate"),
    ("capability-block", "Capability"),
    ("mcp-tool", "Mcp Tool"),
]


def index(model: str, name: str, *fields: str) -> migrations.AddIndex:
    return migrations.AddIndex(model_name=model, index=models.Index(fields=fields, name=name))


class Migration(migrations.Migration):
    dependencies = [
        ("supervise", "0012_decisions_name_bottle_and_tool"),
    ]

    operations = [
        migrations.AlterField(
            model_name="decision",
            name="bottle",
            field=models.ForeignKey(
                db_index=False,
                editable=False,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="decisions",
                to="botbottle.bottle",
            ),
        ),
        migrations.AlterField(
            model_name="decision",
            name="tool",
            field=models.CharField(choices=TOOLS, editable=False, max_length=20),
        ),
        migrations.RemoveIndex(model_name="proposal", name="supervise_p_bottle__6a0212_idx"),
        migrations.RemoveIndex(model_name="proposal", name="supervise_p_ask_dig_db29db_idx"),
        index("proposal", "supervise_p_created_fdb481_idx", "-created_at", "-id"),
        index("proposal", "supervise_p_status_b1ed33_idx", "status", "-created_at", "-id"),
        index("proposal", "supervise_p_tool_6cdca7_idx", "tool", "-created_at", "-id"),
        index("proposal", "supervise_p_bottle__8760f5_idx", "bottle", "-created_at", "-id"),
        index("proposal", "supervise_p_bottle__d4ad03_idx", "bottle", "status", "-created_at", "-id"),
        index("proposal", "supervise_p_ask_dig_87e491_idx", "ask_digest", "-created_at"),
        index("decision", "supervise_d_created_4f010b_idx", "-created_at", "-id"),
        index("decision", "supervise_d_status_291c1b_idx", "status", "-created_at", "-id"),
        index("decision", "supervise_d_tool_8d83f2_idx", "tool", "-created_at", "-id"),
        index("decision", "supervise_d_bottle__ea7a16_idx", "bottle", "-created_at", "-id"),
        index("decision", "supervise_d_bottle__db3981_idx", "bottle", "status", "-created_at", "-id"),
        index("auditevent", "supervise_a_proposa_3a8cbc_idx", "proposal_id", "seq"),
        index("auditevent", "supervise_a_action_15236c_idx", "action", "-seq"),
    ]
