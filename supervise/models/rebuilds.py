"""Rebuild: one change of a bottle's image, from an approved Dockerfile or back to the image before."""

from __future__ import annotations

from django.db import models

from botbottle.models import Bottle


class Rebuild(models.Model):
    """Moved on only by `supervise.bottles.rebuild`. The newest live one is the image in force."""

    class Phase(models.TextChoices):
        QUEUED = "queued"
        SNAPSHOT = "snapshot"
        BUILDING = "building"
        CANARY = "canary"
        SWAPPING = "swapping"
        LIVE = "live"
        FAILED = "failed"

    bottle = models.ForeignKey(Bottle, on_delete=models.PROTECT, related_name="rebuilds")
    decision = models.ForeignKey(
        "supervise.Decision", on_delete=models.PROTECT, null=True, blank=True, related_name="rebuilds"
    )
    undoes = models.ForeignKey(
        "self", on_delete=models.PROTECT, null=True, blank=True, related_name="undone_by"
    )
    author = models.CharField(max_length=150)
    dockerfile = models.TextField(blank=True)
    digest = models.CharField(max_length=64, help_text="Of the Dockerfile: what is built and run carries it.")
    phase = models.CharField(max_length=10, choices=Phase, default=Phase.QUEUED)
    problem = models.TextField(blank=True)
    made_for = models.CharField(
        max_length=64,
        blank=True,
        help_text="Of the manifest's own image: when that changes, it counts again.",
    )
    image = models.CharField(max_length=500, blank=True, help_text="Empty: the manifest's own.")
    previous_image = models.CharField(max_length=500, blank=True)
    previous_dockerfile = models.TextField(blank=True)
    was_running = models.BooleanField(default=False)
    workspace = models.JSONField(
        default=dict, help_text="Branch, commit and changed files before the swap, as the bottle told them."
    )
    attempts = models.PositiveSmallIntegerField(
        default=0, help_text="How often a process was started for it."
    )
    launched_at = models.DateTimeField(
        null=True, blank=True, help_text="Since when a process for it is being started."
    )
    created_at = models.DateTimeField(auto_now_add=True)
    build_started_at = models.DateTimeField(null=True, blank=True)
    build_ended_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        indexes = [models.Index(fields=["bottle", "phase"])]
        ordering = ["-created_at", "-pk"]

    def __str__(self) -> str:
        return f"{self.bottle.slug}: {self.phase}"

    @property
    def is_open(self) -> bool:
        return self.phase not in {self.Phase.LIVE, self.Phase.FAILED}
