"""Route tables, traffic, events of the proxy and secrets.

A table version is immutable. A change is a new version that knows its parent and its author.
"""

from __future__ import annotations

from typing import Any

from django.core.validators import RegexValidator
from django.db import models

from botbottle.models import Bottle
from egress.policy import secret_names
from egress.policy.table import RouteTable

valid_token_ref = RegexValidator(
    rf"\A{secret_names.NAME.pattern}\Z",
    "A secret's name is a letter or '_', then letters, digits, '_', '.' or '-'.",
)


class RouteTableVersion(models.Model):
    bottle = models.ForeignKey(Bottle, on_delete=models.PROTECT, related_name="table_versions")
    version = models.PositiveIntegerField()
    parent = models.ForeignKey("self", on_delete=models.PROTECT, null=True, blank=True)
    content = models.JSONField()
    author = models.CharField(max_length=150)
    cause = models.CharField(max_length=200)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["bottle", "version"], name="one_table_per_bottle_and_version"),
        ]
        indexes = [models.Index(fields=["-created_at", "-id"])]
        ordering = ["bottle", "-version"]

    def __str__(self) -> str:
        return f"{self.bottle.slug} v{self.version}"

    def save(self, *args: Any, **kwargs: Any) -> None:
        if not self._state.adding:
            raise TypeError("A route table version never changes. Append a new version instead.")
        super().save(*args, **kwargs)

    @property
    def table(self) -> RouteTable:
        return RouteTable.from_dict(self.content)


class Publication(models.Model):
    """What was published to the data plane for a bottle. Written only by `egress.tables.publishing`."""

    bottle = models.OneToOneField(Bottle, on_delete=models.PROTECT, related_name="publication")
    home = models.CharField(max_length=32, help_text="Where the bottle was made: its proxy serves it.")
    version = models.PositiveIntegerField(default=0, help_text="Written to the bottle's files.")
    published_at = models.DateTimeField(null=True, blank=True)
    live_version = models.PositiveIntegerField(default=0, help_text="Acknowledged by the egress proxy.")
    live_at = models.DateTimeField(null=True, blank=True)
    problem = models.TextField(blank=True)
    proxy_problems = models.JSONField(
        default=list, blank=True, help_text="What the egress proxy says is wrong now, whatever is published."
    )

    def __str__(self) -> str:
        return f"{self.bottle.slug}: v{self.version}"


class TrafficRecord(models.Model):
    """One request through the proxy: the verdict and the outcome. No query, header or body."""

    bottle = models.ForeignKey(Bottle, on_delete=models.CASCADE, related_name="traffic")
    at = models.DateTimeField()
    method = models.CharField(max_length=32)
    scheme = models.CharField(max_length=8)
    host = models.CharField(max_length=255)
    path = models.CharField(max_length=1024)
    route = models.CharField(max_length=255, blank=True)
    table_version = models.PositiveIntegerField()
    verdict = models.CharField(max_length=16)
    reason = models.CharField(max_length=40)
    status = models.PositiveSmallIntegerField()
    bytes_out = models.BigIntegerField()
    bytes_in = models.BigIntegerField()
    first_byte_ms = models.FloatField(null=True, blank=True)
    duration_ms = models.FloatField()
    ask = models.JSONField(null=True, blank=True, help_text="The tool call that would ask for it.")
    finding = models.JSONField(
        null=True, blank=True, help_text="The kind of secret that was stopped, and where."
    )
    warnings = models.JSONField(default=list, blank=True, help_text="What was seen in the answer.")

    class Meta:
        indexes = [
            models.Index(fields=["bottle", "-at"]),
            models.Index(fields=["verdict", "-at"]),
            models.Index(fields=["at"]),
            models.Index(
                fields=["bottle", "-at"],
                condition=models.Q(verdict="refused", ask__isnull=False, finding__isnull=True),
                name="refusals_to_ask_for",
            ),
        ]
        ordering = ["-at", "-pk"]

    def __str__(self) -> str:
        return f"{self.verdict} {self.method} {self.host}"


class RecordCursor(models.Model):
    """How far the records of an egress process were imported."""

    home = models.CharField(max_length=32)
    process = models.PositiveSmallIntegerField(help_text="Which one of that home, counted from 0.")
    boot = models.CharField(max_length=32, blank=True)
    number = models.PositiveBigIntegerField(default=0)
    lost = models.PositiveBigIntegerField(default=0, help_text="So many, of all its runs, were never read.")
    strangers = models.PositiveBigIntegerField(
        default=0, help_text="So many requests, of all its runs, came with no or a wrong token."
    )
    heard_at = models.DateTimeField(
        null=True, blank=True, help_text="When it last answered, by the database's clock."
    )

    class Meta:
        constraints = [models.UniqueConstraint(fields=["home", "process"], name="one_cursor_per_process")]

    def __str__(self) -> str:
        return f"{self.boot}:{self.number}"


class ProxyEvent(models.Model):
    """Something operators should know about an egress process. Only `egress.traffic` writes it."""

    class Kind(models.TextChoices):
        AWAY = "away"
        BACK = "back"
        RESTARTED = "restarted"
        DROPPED = "dropped"
        PROBLEM = "problem"
        STRANGERS = "strangers"

    at = models.DateTimeField(auto_now_add=True)
    kind = models.CharField(max_length=16, choices=Kind)
    text = models.CharField(max_length=300)
    home = models.CharField(max_length=32)
    process = models.PositiveSmallIntegerField(default=0, help_text="Which egress process, counted from 0.")

    class Meta:
        ordering = ["-at", "-pk"]

    def __str__(self) -> str:
        return self.text


class Secret(models.Model):
    """A credential that the proxy may inject. Encrypted here; the key is a file outside the database."""

    name = models.CharField(max_length=128, unique=True, validators=[valid_token_ref])
    sealed = models.BinaryField(editable=False)
    updated_by = models.CharField(max_length=150)
    updated_at = models.DateTimeField(auto_now=True)

    def __str__(self) -> str:
        return self.name
