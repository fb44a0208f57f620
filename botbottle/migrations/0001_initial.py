import django.core.validators
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
    ]

    operations = [
        migrations.CreateModel(
            name='Bottle',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('slug', models.CharField(max_length=40, validators=[django.core.validators.RegexValidator('\\A[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?\\Z', "A bottle's name is 1 to 40 of a-z, 0-9 and '-', and neither begins nor ends with '-'.")])),
                ('backend', models.CharField(choices=[('local', 'Local'), ('docker', 'Docker'), ('smolmachines', 'Smolmachines')], default='local', max_length=20)),
                ('state', models.CharField(choices=[('created', 'Created'), ('starting', 'Starting'), ('running', 'Running'), ('stopped', 'Stopped'), ('deleted', 'Deleted')], default='created', max_length=20)),
                ('token_digest', models.CharField(editable=False, max_length=64, unique=True)),
                ('token_rotated_at', models.DateTimeField(auto_now_add=True)),
                ('dockerfile', models.TextField(blank=True, help_text='The last approved Dockerfile.')),
                ('manifest', models.TextField(blank=True, help_text='The manifest it was last started with.')),
                ('supervise', models.BooleanField(default=True, help_text='Whether its agent may ask for anything.')),
                ('image', models.CharField(blank=True, max_length=500)),
                ('started_at', models.DateTimeField(blank=True, null=True)),
                ('exit_code', models.IntegerField(blank=True, help_text='Of the last run that ended.', null=True)),
                ('problem', models.TextField(blank=True, help_text='Why the last start failed.')),
                ('backend_problem', models.TextField(blank=True, help_text='Why its backend cannot be asked: the state is the last known one.')),
                ('journal_read', models.PositiveBigIntegerField(default=0, editable=False, help_text='How much of its journal the state and the audit record show.')),
                ('created_at', models.DateTimeField(auto_now_add=True)),
            ],
            options={
                'ordering': ['slug'],
                'permissions': [('run_bottle', 'Can start and stop bottles')],
                'constraints': [models.UniqueConstraint(condition=models.Q(('state', 'deleted'), _negated=True), fields=('slug',), name='one_living_bottle_per_slug')],
            },
        ),
    ]
