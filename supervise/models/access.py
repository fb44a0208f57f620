"""Assignments of operators to bottles, failed sign-ins, and API keys."""

from __future__ import annotations

from django.conf import settings
from django.db import models

from botbottle.models import Bottle


class Assignment(models.Model):
    """An operator of a bottle. A bottle with assigned operators is decided only by them, or by users who may
    assign.
    """

    bottle = models.ForeignKey(Bottle, on_delete=models.CASCADE, related_name="assignments")
    # PROTECT: without its last operator, everyone could decide for the bottle.
    operator = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="assignments"
    )
    assigned_by = models.CharField(max_length=150, editable=False)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["bottle", "operator"], name="one_assignment_per_operator"),
        ]
        ordering = ["bottle__slug", "pk"]

    def __str__(self) -> str:
        return f"{self.operator} for {self.bottle}"


class LoginFailure(models.Model):
    """One failed sign-in. Unknown names are not stored: people type passwords there."""

    account = models.CharField(max_length=150)
    address = models.CharField(max_length=64)
    at = models.DateTimeField()

    class Meta:
        indexes = [models.Index(fields=["address", "at"]), models.Index(fields=["at"])]
        ordering = ["-at", "-pk"]

    def __str__(self) -> str:
        return f"{self.account} from {self.address}"


class ApiKey(models.Model):
    """A key of a script or chat bot to the operator API, acting as its user. Only its digest is stored."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="api_keys")
    name = models.CharField(max_length=80)
    digest = models.CharField(max_length=64, unique=True, editable=False)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        verbose_name = "API key"

    def __str__(self) -> str:
        return self.name
