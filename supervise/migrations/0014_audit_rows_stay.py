from django.db import migrations

WHY = "The audit record is append-only."
SQLITE = [
    f"""
    CREATE TRIGGER audit_rows_stay_{verb} BEFORE {verb} ON supervise_auditevent
    BEGIN SELECT RAISE(ABORT, '{WHY}'); END
    """
    for verb in ("UPDATE", "DELETE")
]
POSTGRESQL = [
    f"""
    CREATE FUNCTION audit_rows_stay() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN RAISE EXCEPTION '{WHY}' USING ERRCODE = 'integrity_constraint_violation'; END $$
    """,
    """
    CREATE TRIGGER audit_rows_stay BEFORE UPDATE OR DELETE OR TRUNCATE ON supervise_auditevent
    FOR EACH STATEMENT EXECUTE FUNCTION audit_rows_stay()
    """,
]
UNDO = {
    "sqlite": ["DROP TRIGGER audit_rows_stay_UPDATE", "DROP TRIGGER audit_rows_stay_DELETE"],
    "postgresql": [
        "DROP TRIGGER audit_rows_stay ON supervise_auditevent",
        "DROP FUNCTION audit_rows_stay()",
    ],
}


def create(apps, schema_editor):
    for statement in SQLITE if schema_editor.connection.vendor == "sqlite" else POSTGRESQL:
        schema_editor.execute(statement)


def drop(apps, schema_editor):
    for statement in UNDO[schema_editor.connection.vendor]:
        schema_editor.execute(statement)


class Migration(migrations.Migration):
    """On SQLite, a later migration that alters the table makes it anew and has to create these again."""

    dependencies = [
        ("supervise", "0013_history_by_index"),
    ]

    operations = [migrations.RunPython(create, drop)]
