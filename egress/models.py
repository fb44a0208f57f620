"""Route tables: versioned and immutable. A change is a new version that knows its parent and its author."""

from __future__ import annotations

from typing import Any

from django.db import models

from botbottle.models import Bottle

from .policy import RouteTable


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
    """What the data plane was given for a bottle. Written only by `egress.store`."""

    bottle = models.OneToOneField(Bottle, on_delete=models.PROTECT, related_name="publication")
    version = models.PositiveIntegerField(default=0)
    published_at = models.DateTimeField(null=True, blank=True)
    problem = models.TextField(blank=True)

    def __str__(self) -> str:
        return f"{self.bottle.slug}: v{self.version}"
