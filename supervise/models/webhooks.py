"""Webhooks, and every message that was, or is still to be, delivered to one."""

from __future__ import annotations

from django.core.validators import URLValidator
from django.db import models
from django.db.models import Q


class Webhook(models.Model):
    """A receiver. Its URL may itself be a credential, so only users who may change it see it."""

    class Kind(models.TextChoices):
        GENERIC = "generic", "JSON, signed"
        SLACK = "slack", "Slack"
        DISCORD = "discord", "Discord"
        MATRIX = "matrix", "Matrix (hookshot)"

    class Event(models.TextChoices):
        FILED = "filed", "a proposal was filed"
        HIGH_RISK = "high-risk", "a high-risk proposal was filed"
        DECIDED = "decided", "a proposal was decided, withdrawn or expired"
        NOT_LIVE = "not-live", "an approval could not be applied"
        STOPPED = "stopped", "a bottle stopped, or did not start"
        TEST = "test", "a test"

    name = models.CharField(max_length=80, unique=True)
    url = models.CharField(max_length=2000, validators=[URLValidator(schemes=["https", "http"])])
    kind = models.CharField(max_length=10, choices=Kind, default=Kind.GENERIC)
    events = models.JSONField(default=list)
    sealed = models.BinaryField(editable=False, default=b"", help_text="The key of its signatures.")
    is_active = models.BooleanField("active", default=True)
    read_seq = models.PositiveBigIntegerField(
        default=0, editable=False, help_text="The last row of the audit record that was read for it."
    )
    updated_by = models.CharField(max_length=150, editable=False)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class Delivery(models.Model):
    """One message to one receiver: an outbox row while it waits, a log entry after that."""

    class State(models.TextChoices):
        WAITING = "waiting"
        DELIVERED = "delivered"
        GIVEN_UP = "given up"

    webhook = models.ForeignKey(Webhook, on_delete=models.CASCADE, related_name="deliveries")
    event = models.CharField(max_length=20, choices=Webhook.Event)
    seq = models.PositiveBigIntegerField(null=True, blank=True, help_text="The audit row it tells of.")
    facts = models.JSONField()
    state = models.CharField(max_length=10, choices=State, default=State.WAITING)
    attempts = models.PositiveIntegerField(default=0)
    next_attempt_at = models.DateTimeField()
    response_code = models.PositiveSmallIntegerField(null=True, blank=True)
    last_error = models.CharField(max_length=300, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        verbose_name_plural = "deliveries"
        constraints = [
            models.UniqueConstraint(
                fields=["webhook", "seq"], condition=Q(seq__isnull=False), name="one_delivery_per_audit_row"
            ),
        ]
        indexes = [
            models.Index(fields=["state", "next_attempt_at"]),
            models.Index(fields=["finished_at"]),
        ]
        ordering = ["-created_at", "-pk"]

    def __str__(self) -> str:
        return f"{self.event} to {self.webhook_id}"
