"""What agents ask, what operators decided, and the record of both that cannot be rewritten unnoticed."""

from __future__ import annotations

import uuid

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils import timezone

from botbottle.models import Bottle
from egress.models import RouteTableVersion


class Proposal(models.Model):
    """An agent's ask. The ask never changes; its status changes only in `proposals.decisions`."""

    class Status(models.TextChoices):
        PENDING = "pending"
        APPROVED = "approved"
        MODIFIED = "modified"
        REJECTED = "rejected"
        WITHDRAWN = "withdrawn"
        EXPIRED = "expired"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    bottle = models.ForeignKey(Bottle, on_delete=models.PROTECT, related_name="proposals")
    tool = models.CharField(max_length=20)  # the name of a kind: a new kind needs no migration
    payload = models.JSONField()
    justification = models.TextField()
    ask_digest = models.CharField(
        max_length=64, help_text="Equal for equal asks, whatever the justification."
    )
    digest = models.CharField(max_length=64, help_text="Of everything an operator is shown of this proposal.")
    base_version = models.PositiveIntegerField(help_text="The route table's version when this was asked.")
    status = models.CharField(max_length=10, choices=Status, default=Status.PENDING)
    risk_when_filed = models.PositiveSmallIntegerField(
        default=0, help_text="So that the riskiest are shown even when there are too many to show."
    )
    joined = models.PositiveIntegerField(default=0, help_text="How often the same ask was filed again.")
    filed_by = models.CharField(
        max_length=150, blank=True, help_text="The operator who filed it for the bottle; empty: its agent."
    )
    asked_at = models.DateTimeField(
        default=timezone.now, help_text="When a call last began to wait for the answer."
    )
    snoozed_until = models.DateTimeField(null=True, blank=True, help_text="Out of the queue until then.")
    snoozed_by = models.CharField(max_length=150, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["bottle", "ask_digest"],
                condition=Q(status="pending"),
                name="one_pending_card_per_ask",
            ),
        ]
        # Lists are read from the end of one of these: none of them counts or sorts what is past.
        indexes = [
            models.Index(fields=["status", "-risk_when_filed", "-created_at"]),
            models.Index(fields=["-created_at", "-id"]),
            models.Index(fields=["status", "-created_at", "-id"]),
            models.Index(fields=["tool", "-created_at", "-id"]),
            models.Index(fields=["bottle", "-created_at", "-id"]),
            models.Index(fields=["bottle", "status", "-created_at", "-id"]),
            models.Index(fields=["ask_digest", "-created_at"]),
        ]
        ordering = ["-created_at"]
        permissions = [("decide_proposal", "Can approve, modify and reject proposals")]

    def __str__(self) -> str:
        return f"{self.tool} {self.id}"

    @property
    def is_pending(self) -> bool:
        return self.status == self.Status.PENDING


class Decision(models.Model):
    """The one answer to a proposal, and how far applying it has come."""

    class Applied(models.TextChoices):
        NOTHING = "nothing"  # rejected, withdrawn, expired: there is nothing to apply
        WAITING = "waiting"
        LIVE = "live"
        FAILED = "failed"
        RECORDED = "recorded"  # kept for an operator to carry out; nothing more happens by itself

    proposal = models.OneToOneField(Proposal, on_delete=models.PROTECT, related_name="decision")
    # Copied from the proposal, so that the history of a bottle or a tool is one stretch of an index.
    bottle = models.ForeignKey(
        Bottle, on_delete=models.PROTECT, related_name="decisions", editable=False, db_index=False
    )
    tool = models.CharField(max_length=20, editable=False)
    status = models.CharField(max_length=10, choices=Proposal.Status)
    actor = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, blank=True, related_name="+"
    )
    actor_name = models.CharField(max_length=150)
    notes = models.TextField(blank=True)
    final_payload = models.JSONField(null=True, blank=True)
    seen_digest = models.CharField(max_length=64, blank=True)
    granted = models.JSONField(null=True, blank=True)
    not_granted = models.JSONField(null=True, blank=True)
    table_version = models.ForeignKey(
        RouteTableVersion, on_delete=models.PROTECT, null=True, blank=True, related_name="decisions"
    )
    applied = models.CharField(max_length=10, choices=Applied)
    apply_error = models.TextField(blank=True)
    live_version = models.PositiveIntegerField(null=True, blank=True)
    live_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        indexes = [
            models.Index(fields=["applied", "created_at"]),
            models.Index(fields=["-created_at", "-id"]),
            models.Index(fields=["status", "-created_at", "-id"]),
            models.Index(fields=["tool", "-created_at", "-id"]),
            models.Index(fields=["bottle", "-created_at", "-id"]),
            models.Index(fields=["bottle", "status", "-created_at", "-id"]),
        ]
        ordering = ["-created_at"]

    def __str__(self) -> str:
        return f"{self.status} by {self.actor_name}"


class Approval(models.Model):
    """One operator's approval of a high-risk proposal that needs several (SUPERVISE_QUORUM)."""

    proposal = models.ForeignKey(Proposal, on_delete=models.PROTECT, related_name="approvals")
    actor = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    granted_digest = models.CharField(max_length=64, help_text="Of what was seen and what would be granted.")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["proposal", "actor"], name="one_approval_per_operator"),
        ]

    def __str__(self) -> str:
        return f"{self.actor} for {self.proposal_id}"


class StandingRefusal(models.Model):
    """ "Stop asking": until it is lifted, the same ask of this bottle is answered with the earlier reason."""

    decision = models.OneToOneField(Decision, on_delete=models.PROTECT, related_name="standing_refusal")
    bottle = models.ForeignKey(Bottle, on_delete=models.PROTECT, related_name="standing_refusals")
    ask_digest = models.CharField(max_length=64)
    repeats = models.PositiveIntegerField(default=0, help_text="How often it answered.")
    last_asked_at = models.DateTimeField(null=True, blank=True)
    lifted_at = models.DateTimeField(null=True, blank=True)
    lifted_by = models.CharField(max_length=150, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["bottle", "ask_digest"],
                condition=Q(lifted_at=None),
                name="one_standing_refusal_per_ask",
            ),
        ]
        ordering = ["-created_at"]

    def __str__(self) -> str:
        return f"{self.bottle_id}: {self.ask_digest[:8]}"
