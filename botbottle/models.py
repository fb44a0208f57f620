"""Bottle: one sandboxed agent, and the digest of the token that proves who it is."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import ClassVar

from django.core.validators import RegexValidator
from django.db import models
from django.db.models import Q

TOKEN_PREFIX = "bbt_"  # noqa: S105 - a marker, so that a leaked token can be recognised
valid_slug = RegexValidator(
    r"\A[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?\Z",
    "A bottle's name is 1 to 40 of a-z, 0-9 and '-', and neither begins nor ends with '-'.",
)


def new_token() -> str:
    return TOKEN_PREFIX + secrets.token_urlsafe(32)


def digest_token(token: str) -> str:
    # The token has 256 random bits, so a fast digest cannot be brute-forced and costs little per request.
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


class Bottle(models.Model):
    class Backend(models.TextChoices):
        LOCAL = "local"
        DOCKER = "docker"
        SMOLMACHINES = "smolmachines"

    class State(models.TextChoices):
        CREATED = "created"
        STARTING = "starting"
        RUNNING = "running"
        STOPPED = "stopped"
        DELETED = "deleted"

    slug = models.CharField(max_length=40, validators=[valid_slug])
    backend = models.CharField(max_length=20, choices=Backend, default=Backend.LOCAL)
    state = models.CharField(max_length=20, choices=State, default=State.CREATED)
    token_digest = models.CharField(max_length=64, unique=True, editable=False)
    token_rotated_at = models.DateTimeField(auto_now_add=True)
    dockerfile = models.TextField(blank=True, help_text="The last approved Dockerfile.")
    manifest = models.TextField(blank=True, help_text="The manifest it was last started with.")
    supervise = models.BooleanField(default=True, help_text="Whether its agent may ask for anything.")
    image = models.CharField(max_length=500, blank=True)
    started_at = models.DateTimeField(null=True, blank=True)
    exit_code = models.IntegerField(null=True, blank=True, help_text="Of the last run that ended.")
    problem = models.TextField(blank=True, help_text="Why the last start failed.")
    backend_problem = models.TextField(
        blank=True, help_text="Why its backend cannot be asked: the state is the last known one."
    )
    journal_read = models.PositiveBigIntegerField(
        default=0, editable=False, help_text="How much of its journal the state and the audit record show."
    )
    created_at = models.DateTimeField(auto_now_add=True)

    # DRF asks its "user" this; a bottle only becomes one after its token or socket was checked.
    is_authenticated: ClassVar[bool] = True

    class Meta:
        constraints = [
            # A deleted bottle keeps its history; its name is free again.
            models.UniqueConstraint(
                fields=["slug"], condition=~Q(state="deleted"), name="one_living_bottle_per_slug"
            ),
        ]
        ordering = ["slug"]
        permissions = [("run_bottle", "Can start and stop bottles")]

    def __str__(self) -> str:
        return self.slug

    def accepts(self, token: str) -> bool:
        return hmac.compare_digest(self.token_digest, digest_token(token))
