"""The record of what operators did: a chain of hashes that cannot be rewritten unnoticed."""

from __future__ import annotations

from typing import Any

from django.db import models


class AuditEvent(models.Model):
    """One row of the hash chain. Appended by `supervise.audit`; triggers refuse to change or remove it."""

    seq = models.PositiveBigIntegerField(unique=True)
    at = models.DateTimeField()
    actor_name = models.CharField(max_length=150)
    action = models.CharField(max_length=40)
    bottle_slug = models.CharField(max_length=40, blank=True)
    proposal_id = models.UUIDField(null=True, blank=True)
    details = models.JSONField(default=dict)
    previous_hash = models.CharField(max_length=64)
    hash = models.CharField(max_length=64)

    class Meta:
        indexes = [models.Index(fields=["proposal_id", "seq"]), models.Index(fields=["action", "-seq"])]
        ordering = ["-seq"]

    def __str__(self) -> str:
        return f"#{self.seq} {self.action} by {self.actor_name}"

    def save(self, *args: Any, **kwargs: Any) -> None:
        if not self._state.adding:
            raise TypeError("The audit record is append-only.")
        super().save(*args, **kwargs)

    def delete(self, *args: Any, **kwargs: Any) -> tuple[int, dict[str, int]]:
        raise TypeError("The audit record is append-only.")


class AuditHead(models.Model):
    """A single row that every append locks, so that the chain has no forks."""

    seq = models.PositiveBigIntegerField(default=0)
    hash = models.CharField(max_length=64, default="0" * 64)

    def __str__(self) -> str:
        return f"#{self.seq}"
