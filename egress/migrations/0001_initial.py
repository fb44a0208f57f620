import django.core.validators
import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
        ('botbottle', '0001_initial'),
    ]

    operations = [
        migrations.CreateModel(
            name='ProxyEvent',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('at', models.DateTimeField(auto_now_add=True)),
                ('kind', models.CharField(choices=[('away', 'Away'), ('back', 'Back'), ('restarted', 'Restarted'), ('dropped', 'Dropped'), ('problem', 'Problem'), ('strangers', 'Strangers')], max_length=16)),
                ('text', models.CharField(max_length=300)),
                ('home', models.CharField(max_length=32)),
                ('process', models.PositiveSmallIntegerField(default=0, help_text='Which egress process, counted from 0.')),
            ],
            options={
                'ordering': ['-at', '-pk'],
            },
        ),
        migrations.CreateModel(
            name='Secret',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=128, unique=True, validators=[django.core.validators.RegexValidator('\\A[A-Za-z_][A-Za-z0-9_.-]{0,127}\\Z', "A secret's name is a letter or '_', then letters, digits, '_', '.' or '-'.")])),
                ('sealed', models.BinaryField()),
                ('updated_by', models.CharField(max_length=150)),
                ('updated_at', models.DateTimeField(auto_now=True)),
            ],
        ),
        migrations.CreateModel(
            name='Publication',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('home', models.CharField(help_text='Where the bottle was made: its proxy serves it.', max_length=32)),
                ('version', models.PositiveIntegerField(default=0, help_text="Written to the bottle's files.")),
                ('published_at', models.DateTimeField(blank=True, null=True)),
                ('live_version', models.PositiveIntegerField(default=0, help_text='Acknowledged by the egress proxy.')),
                ('live_at', models.DateTimeField(blank=True, null=True)),
                ('problem', models.TextField(blank=True)),
                ('proxy_problems', models.JSONField(blank=True, default=list, help_text='What the egress proxy says is wrong now, whatever is published.')),
                ('bottle', models.OneToOneField(on_delete=django.db.models.deletion.PROTECT, related_name='publication', to='botbottle.bottle')),
            ],
        ),
        migrations.CreateModel(
            name='RecordCursor',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('home', models.CharField(max_length=32)),
                ('process', models.PositiveSmallIntegerField(help_text='Which one of that home, counted from 0.')),
                ('boot', models.CharField(blank=True, max_length=32)),
                ('number', models.PositiveBigIntegerField(default=0)),
                ('lost', models.PositiveBigIntegerField(default=0, help_text='So many, of all its runs, were never read.')),
                ('strangers', models.PositiveBigIntegerField(default=0, help_text='So many requests, of all its runs, came with no or a wrong token.')),
                ('heard_at', models.DateTimeField(blank=True, help_text="When it last answered, by the database's clock.", null=True)),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('home', 'process'), name='one_cursor_per_process')],
            },
        ),
        migrations.CreateModel(
            name='RouteTableVersion',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('version', models.PositiveIntegerField()),
                ('content', models.JSONField()),
                ('author', models.CharField(max_length=150)),
                ('cause', models.CharField(max_length=200)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('bottle', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='table_versions', to='botbottle.bottle')),
                ('parent', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, to='egress.routetableversion')),
            ],
            options={
                'ordering': ['bottle', '-version'],
                'indexes': [models.Index(fields=['-created_at', '-id'], name='egress_rout_created_00c547_idx')],
                'constraints': [models.UniqueConstraint(fields=('bottle', 'version'), name='one_table_per_bottle_and_version')],
            },
        ),
        migrations.CreateModel(
            name='TrafficRecord',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('at', models.DateTimeField()),
                ('method', models.CharField(max_length=32)),
                ('scheme', models.CharField(max_length=8)),
                ('host', models.CharField(max_length=255)),
                ('path', models.CharField(max_length=1024)),
                ('route', models.CharField(blank=True, max_length=255)),
                ('table_version', models.PositiveIntegerField()),
                ('verdict', models.CharField(max_length=16)),
                ('reason', models.CharField(max_length=40)),
                ('status', models.PositiveSmallIntegerField()),
                ('bytes_out', models.BigIntegerField()),
                ('bytes_in', models.BigIntegerField()),
                ('first_byte_ms', models.FloatField(blank=True, null=True)),
                ('duration_ms', models.FloatField()),
                ('ask', models.JSONField(blank=True, help_text='The tool call that would ask for it.', null=True)),
                ('finding', models.JSONField(blank=True, help_text='The kind of secret that was stopped, and where.', null=True)),
                ('warnings', models.JSONField(blank=True, default=list, help_text='What was seen in the answer.')),
                ('bottle', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='traffic', to='botbottle.bottle')),
            ],
            options={
                'ordering': ['-at', '-pk'],
                'indexes': [models.Index(fields=['bottle', '-at'], name='egress_traf_bottle__6ac1d4_idx'), models.Index(fields=['verdict', '-at'], name='egress_traf_verdict_27e325_idx'), models.Index(fields=['at'], name='egress_traf_at_da2322_idx'), models.Index(condition=models.Q(('ask__isnull', False), ('finding__isnull', True), ('verdict', 'refused')), fields=['bottle', '-at'], name='refusals_to_ask_for')],
            },
        ),
    ]
