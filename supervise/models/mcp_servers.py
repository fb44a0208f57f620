"""ManagedServer: the condition of one MCP server inside a bottle. Only `bottles.mcp_servers` writes it."""

from __future__ import annotations

from django.db import models

from botbottle.models import Bottle


class ManagedServer(models.Model):
    class Condition(models.TextChoices):
        STARTING = "starting"
        RUNNING = "running"
        WAITING = "waiting"  # failed, and tried again by itself
        STOPPED = "stopped"

    bottle = models.ForeignKey(Bottle, on_delete=models.CASCADE, related_name="managed_servers")
    name = models.CharField(max_length=40)
    condition = models.CharField("status", max_length=10, choices=Condition, default=Condition.STOPPED)
    is_wanted = models.BooleanField(default=True, help_text="Not so once an operator stopped it.")
    phase = models.CharField(max_length=20, blank=True, help_text="Where it failed last.")
    problem = models.TextField(blank=True)
    exit_code = models.IntegerField(null=True, blank=True, help_text="Of its last end.")
    stderr = models.TextField(blank=True, help_text="The last it said, from inside the bottle.")
    env_names = models.JSONField(default=list)
    restarts = models.PositiveIntegerField(default=0)
    dropped_lines = models.PositiveIntegerField(
        default=0, help_text="Of standard output, that were no protocol."
    )
    limits = models.CharField(
        max_length=200, blank=True, help_text="Which hold for all its processes together, and which for each."
    )
    started_at = models.DateTimeField(null=True, blank=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["bottle", "name"], name="one_row_per_managed_server"),
        ]
        ordering = ["bottle", "name"]

    def __str__(self) -> str:
        return f"{self.bottle.slug}: {self.name}"
