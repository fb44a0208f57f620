import django.db.models.deletion
from django.db import migrations, models

from supervise.access import roles


def grant(apps, schema_editor):
    roles.grant(apps)


class Migration(migrations.Migration):

    dependencies = [
        ('botbottle', '0002_running'),
        ('supervise', '0005_rebuilds'),
    ]

    operations = [
        migrations.AlterField(
            model_name='proposal',
            name='tool',
            field=models.CharField(choices=[('egress-block', 'Egress'), ('pipelock-block', 'Gate'), ('capability-block', 'Capability'), ('mcp-tool', 'Mcp Tool')], max_length=20),
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
                ('started_at', models.DateTimeField(blank=True, null=True)),
                ('updated_at', models.DateTimeField(auto_now=True)),
                ('bottle', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='managed_servers', to='botbottle.bottle')),
            ],
            options={
                'ordering': ['bottle', 'name'],
                'constraints': [models.UniqueConstraint(fields=('bottle', 'name'), name='one_row_per_managed_server')],
            },
        ),
        migrations.RunPython(grant, migrations.RunPython.noop),
    ]
