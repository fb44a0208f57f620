import django.core.validators
import django.db.models.deletion
import django.utils.timezone
import uuid
from django.conf import settings
from django.db import migrations, models

from ._roles import grant


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


def grant_roles(apps, schema_editor):
    grant(apps)


class Migration(migrations.Migration):
    """On SQLite, a later migration that alters the audit table recreates it and must create its triggers again."""

    initial = True

    dependencies = [
        ('auth', '0012_alter_user_first_name_max_length'),
        ('contenttypes', '0002_remove_content_type_name'),
        ('botbottle', '0001_initial'),
        ('egress', '0001_initial'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name='AuditHead',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('seq', models.PositiveBigIntegerField(default=0)),
                ('hash', models.CharField(default='0000000000000000000000000000000000000000000000000000000000000000', max_length=64)),
            ],
        ),
        migrations.CreateModel(
            name='Webhook',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=80, unique=True)),
                ('url', models.CharField(max_length=2000, validators=[django.core.validators.URLValidator(schemes=['https', 'http'])])),
                ('kind', models.CharField(choices=[('generic', 'JSON, signed'), ('slack', 'Slack'), ('discord', 'Discord'), ('matrix', 'Matrix (hookshot)')], default='generic', max_length=10)),
                ('events', models.JSONField(default=list)),
                ('sealed', models.BinaryField(default=b'', help_text='The key of its signatures.')),
                ('is_active', models.BooleanField(default=True, verbose_name='active')),
                ('read_seq', models.PositiveBigIntegerField(default=0, editable=False, help_text='The last row of the audit record that was read for it.')),
                ('updated_by', models.CharField(editable=False, max_length=150)),
                ('updated_at', models.DateTimeField(auto_now=True)),
            ],
            options={
                'ordering': ['name'],
            },
        ),
        migrations.CreateModel(
            name='ApiKey',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=80)),
                ('digest', models.CharField(editable=False, max_length=64, unique=True)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('user', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='api_keys', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'verbose_name': 'API key',
            },
        ),
        migrations.CreateModel(
            name='AuditEvent',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('seq', models.PositiveBigIntegerField(unique=True)),
                ('at', models.DateTimeField()),
                ('actor_name', models.CharField(max_length=150)),
                ('action', models.CharField(max_length=40)),
                ('bottle_slug', models.CharField(blank=True, max_length=40)),
                ('proposal_id', models.UUIDField(blank=True, null=True)),
                ('details', models.JSONField(default=dict)),
                ('previous_hash', models.CharField(max_length=64)),
                ('hash', models.CharField(max_length=64)),
            ],
            options={
                'ordering': ['-seq'],
                'indexes': [models.Index(fields=['proposal_id', 'seq'], name='supervise_a_proposa_3a8cbc_idx'), models.Index(fields=['action', '-seq'], name='supervise_a_action_15236c_idx')],
            },
        ),
        migrations.CreateModel(
            name='LoginFailure',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('account', models.CharField(max_length=150)),
                ('address', models.CharField(max_length=64)),
                ('at', models.DateTimeField()),
            ],
            options={
                'ordering': ['-at', '-pk'],
                'indexes': [models.Index(fields=['address', 'at'], name='supervise_l_address_f4aaaa_idx'), models.Index(fields=['at'], name='supervise_l_at_0f223a_idx')],
            },
        ),
        migrations.CreateModel(
            name='Proposal',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('tool', models.CharField(max_length=20)),
                ('payload', models.JSONField()),
                ('justification', models.TextField()),
                ('ask_digest', models.CharField(help_text='Equal for equal asks, whatever the justification.', max_length=64)),
                ('digest', models.CharField(help_text='Of everything an operator is shown of this proposal.', max_length=64)),
                ('base_version', models.PositiveIntegerField(help_text="The route table's version when this was asked.")),
                ('status', models.CharField(choices=[('pending', 'Pending'), ('approved', 'Approved'), ('modified', 'Modified'), ('rejected', 'Rejected'), ('withdrawn', 'Withdrawn'), ('expired', 'Expired')], default='pending', max_length=10)),
                ('risk_when_filed', models.PositiveSmallIntegerField(default=0, help_text='So that the riskiest are shown even when there are too many to show.')),
                ('joined', models.PositiveIntegerField(default=0, help_text='How often the same ask was filed again.')),
                ('filed_by', models.CharField(blank=True, help_text='The operator who filed it for the bottle; empty: its agent.', max_length=150)),
                ('asked_at', models.DateTimeField(default=django.utils.timezone.now, help_text='When a call last began to wait for the answer.')),
                ('snoozed_until', models.DateTimeField(blank=True, help_text='Out of the queue until then.', null=True)),
                ('snoozed_by', models.CharField(blank=True, max_length=150)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('bottle', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='proposals', to='botbottle.bottle')),
            ],
            options={
                'ordering': ['-created_at'],
                'permissions': [('decide_proposal', 'Can approve, modify and reject proposals')],
            },
        ),
        migrations.CreateModel(
            name='Decision',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('tool', models.CharField(editable=False, max_length=20)),
                ('status', models.CharField(choices=[('pending', 'Pending'), ('approved', 'Approved'), ('modified', 'Modified'), ('rejected', 'Rejected'), ('withdrawn', 'Withdrawn'), ('expired', 'Expired')], max_length=10)),
                ('actor_name', models.CharField(max_length=150)),
                ('notes', models.TextField(blank=True)),
                ('final_payload', models.JSONField(blank=True, null=True)),
                ('seen_digest', models.CharField(blank=True, max_length=64)),
                ('granted', models.JSONField(blank=True, null=True)),
                ('not_granted', models.JSONField(blank=True, null=True)),
                ('applied', models.CharField(choices=[('nothing', 'Nothing'), ('waiting', 'Waiting'), ('live', 'Live'), ('failed', 'Failed'), ('recorded', 'Recorded')], max_length=10)),
                ('apply_error', models.TextField(blank=True)),
                ('live_version', models.PositiveIntegerField(blank=True, null=True)),
                ('live_at', models.DateTimeField(blank=True, null=True)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('actor', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('bottle', models.ForeignKey(db_index=False, editable=False, on_delete=django.db.models.deletion.PROTECT, related_name='decisions', to='botbottle.bottle')),
                ('table_version', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='decisions', to='egress.routetableversion')),
                ('proposal', models.OneToOneField(on_delete=django.db.models.deletion.PROTECT, related_name='decision', to='supervise.proposal')),
            ],
            options={
                'ordering': ['-created_at'],
            },
        ),
        migrations.CreateModel(
            name='Approval',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('granted_digest', models.CharField(help_text='Of what was seen and what would be granted.', max_length=64)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('actor', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('proposal', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='approvals', to='supervise.proposal')),
            ],
        ),
        migrations.CreateModel(
            name='Rebuild',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('author', models.CharField(max_length=150)),
                ('dockerfile', models.TextField(blank=True)),
                ('digest', models.CharField(help_text='Of the Dockerfile: what is built and run carries it.', max_length=64)),
                ('phase', models.CharField(choices=[('queued', 'Queued'), ('snapshot', 'Snapshot'), ('building', 'Building'), ('canary', 'Canary'), ('swapping', 'Swapping'), ('live', 'Live'), ('failed', 'Failed')], default='queued', max_length=10)),
                ('problem', models.TextField(blank=True)),
                ('made_for', models.CharField(blank=True, help_text="Of the manifest's own image: when that changes, it counts again.", max_length=64)),
                ('image', models.CharField(blank=True, help_text="Empty: the manifest's own.", max_length=500)),
                ('previous_image', models.CharField(blank=True, max_length=500)),
                ('previous_dockerfile', models.TextField(blank=True)),
                ('was_running', models.BooleanField(default=False)),
                ('workspace', models.JSONField(default=dict, help_text='Branch, commit and changed files before the swap, as the bottle told them.')),
                ('attempts', models.PositiveSmallIntegerField(default=0, help_text='How often a process was started for it.')),
                ('launched_at', models.DateTimeField(blank=True, help_text='Since when a process for it is being started.', null=True)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('build_started_at', models.DateTimeField(blank=True, null=True)),
                ('build_ended_at', models.DateTimeField(blank=True, null=True)),
                ('ended_at', models.DateTimeField(blank=True, null=True)),
                ('bottle', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='rebuilds', to='botbottle.bottle')),
                ('decision', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='rebuilds', to='supervise.decision')),
                ('undoes', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='undone_by', to='supervise.rebuild')),
            ],
            options={
                'ordering': ['-created_at', '-pk'],
            },
        ),
        migrations.CreateModel(
            name='StandingRefusal',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('ask_digest', models.CharField(max_length=64)),
                ('repeats', models.PositiveIntegerField(default=0, help_text='How often it answered.')),
                ('last_asked_at', models.DateTimeField(blank=True, null=True)),
                ('lifted_at', models.DateTimeField(blank=True, null=True)),
                ('lifted_by', models.CharField(blank=True, max_length=150)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('bottle', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='standing_refusals', to='botbottle.bottle')),
                ('decision', models.OneToOneField(on_delete=django.db.models.deletion.PROTECT, related_name='standing_refusal', to='supervise.decision')),
            ],
            options={
                'ordering': ['-created_at'],
            },
        ),
        migrations.CreateModel(
            name='Delivery',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('event', models.CharField(choices=[('filed', 'a proposal was filed'), ('high-risk', 'a high-risk proposal was filed'), ('decided', 'a proposal was decided, withdrawn or expired'), ('not-live', 'an approval could not be applied'), ('stopped', 'a bottle stopped, or did not start'), ('test', 'a test')], max_length=20)),
                ('seq', models.PositiveBigIntegerField(blank=True, help_text='The audit row it tells of.', null=True)),
                ('facts', models.JSONField()),
                ('state', models.CharField(choices=[('waiting', 'Waiting'), ('delivered', 'Delivered'), ('given up', 'Given Up')], default='waiting', max_length=10)),
                ('attempts', models.PositiveIntegerField(default=0)),
                ('next_attempt_at', models.DateTimeField()),
                ('response_code', models.PositiveSmallIntegerField(blank=True, null=True)),
                ('last_error', models.CharField(blank=True, max_length=300)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('finished_at', models.DateTimeField(blank=True, null=True)),
                ('webhook', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='deliveries', to='supervise.webhook')),
            ],
            options={
                'verbose_name_plural': 'deliveries',
                'ordering': ['-created_at', '-pk'],
            },
        ),
        migrations.CreateModel(
            name='Assignment',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('assigned_by', models.CharField(editable=False, max_length=150)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('bottle', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='assignments', to='botbottle.bottle')),
                ('operator', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='assignments', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'ordering': ['bottle__slug', 'pk'],
                'constraints': [models.UniqueConstraint(fields=('bottle', 'operator'), name='one_assignment_per_operator')],
            },
        ),
        migrations.CreateModel(
            name='ManagedServer',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=40)),
                ('condition', models.CharField(choices=[('starting', 'Starting'), ('running', 'Running'), ('waiting', 'Waiting'), ('stopped', 'Stopped')], default='stopped', max_length=10, verbose_name='status')),
                ('is_wanted', models.BooleanField(default=True, help_text='Not so once an operator stopped it.')),
                ('phase', models.CharField(blank=True, help_text='Where it failed last.', max_length=20)),
                ('problem', models.TextField(blank=True)),
                ('exit_code', models.IntegerField(blank=True, help_text='Of its last end.', null=True)),
                ('stderr', models.TextField(blank=True, help_text='The last it said, from inside the bottle.')),
                ('env_names', models.JSONField(default=list)),
                ('restarts', models.PositiveIntegerField(default=0)),
                ('dropped_lines', models.PositiveIntegerField(default=0, help_text='Of standard output, that were no protocol.')),
                ('limits', models.CharField(blank=True, help_text='Which hold for all its processes together, and which for each.', max_length=200)),
                ('started_at', models.DateTimeField(blank=True, null=True)),
                ('updated_at', models.DateTimeField(auto_now=True)),
                ('bottle', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='managed_servers', to='botbottle.bottle')),
            ],
            options={
                'ordering': ['bottle', 'name'],
                'constraints': [models.UniqueConstraint(fields=('bottle', 'name'), name='one_row_per_managed_server')],
            },
        ),
        migrations.AddIndex(
            model_name='proposal',
            index=models.Index(fields=['status', '-risk_when_filed', '-created_at'], name='supervise_p_status_be6db8_idx'),
        ),
        migrations.AddIndex(
            model_name='proposal',
            index=models.Index(fields=['-created_at', '-id'], name='supervise_p_created_fdb481_idx'),
        ),
        migrations.AddIndex(
            model_name='proposal',
            index=models.Index(fields=['status', '-created_at', '-id'], name='supervise_p_status_b1ed33_idx'),
        ),
        migrations.AddIndex(
            model_name='proposal',
            index=models.Index(fields=['tool', '-created_at', '-id'], name='supervise_p_tool_6cdca7_idx'),
        ),
        migrations.AddIndex(
            model_name='proposal',
            index=models.Index(fields=['bottle', '-created_at', '-id'], name='supervise_p_bottle__8760f5_idx'),
        ),
        migrations.AddIndex(
            model_name='proposal',
            index=models.Index(fields=['bottle', 'status', '-created_at', '-id'], name='supervise_p_bottle__d4ad03_idx'),
        ),
        migrations.AddIndex(
            model_name='proposal',
            index=models.Index(fields=['ask_digest', '-created_at'], name='supervise_p_ask_dig_87e491_idx'),
        ),
        migrations.AddConstraint(
            model_name='proposal',
            constraint=models.UniqueConstraint(condition=models.Q(('status', 'pending')), fields=('bottle', 'ask_digest'), name='one_pending_card_per_ask'),
        ),
        migrations.AddIndex(
            model_name='decision',
            index=models.Index(fields=['applied', 'created_at'], name='supervise_d_applied_75c489_idx'),
        ),
        migrations.AddIndex(
            model_name='decision',
            index=models.Index(fields=['-created_at', '-id'], name='supervise_d_created_4f010b_idx'),
        ),
        migrations.AddIndex(
            model_name='decision',
            index=models.Index(fields=['status', '-created_at', '-id'], name='supervise_d_status_291c1b_idx'),
        ),
        migrations.AddIndex(
            model_name='decision',
            index=models.Index(fields=['tool', '-created_at', '-id'], name='supervise_d_tool_8d83f2_idx'),
        ),
        migrations.AddIndex(
            model_name='decision',
            index=models.Index(fields=['bottle', '-created_at', '-id'], name='supervise_d_bottle__ea7a16_idx'),
        ),
        migrations.AddIndex(
            model_name='decision',
            index=models.Index(fields=['bottle', 'status', '-created_at', '-id'], name='supervise_d_bottle__db3981_idx'),
        ),
        migrations.AddConstraint(
            model_name='approval',
            constraint=models.UniqueConstraint(fields=('proposal', 'actor'), name='one_approval_per_operator'),
        ),
        migrations.AddIndex(
            model_name='rebuild',
            index=models.Index(fields=['bottle', 'phase'], name='supervise_r_bottle__5ff1c1_idx'),
        ),
        migrations.AddConstraint(
            model_name='standingrefusal',
            constraint=models.UniqueConstraint(condition=models.Q(('lifted_at', None)), fields=('bottle', 'ask_digest'), name='one_standing_refusal_per_ask'),
        ),
        migrations.AddIndex(
            model_name='delivery',
            index=models.Index(fields=['state', 'next_attempt_at'], name='supervise_d_state_a49412_idx'),
        ),
        migrations.AddIndex(
            model_name='delivery',
            index=models.Index(fields=['finished_at'], name='supervise_d_finishe_94b31e_idx'),
        ),
        migrations.AddConstraint(
            model_name='delivery',
            constraint=models.UniqueConstraint(condition=models.Q(('seq__isnull', False)), fields=('webhook', 'seq'), name='one_delivery_per_audit_row'),
        ),
        migrations.RunPython(create, drop),
        migrations.RunPython(grant_roles, migrations.RunPython.noop),
    ]
