"""Bottles in the admin: for reading, and to start and stop them."""

from __future__ import annotations

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html_join

from botbottle.admin import ReadOnlyAdmin, hostile, hostile_line
from botbottle.core import sanitize
from botbottle.models import Bottle
from supervise.access import permissions
from supervise.bottles import lifecycle
from supervise.errors import SuperviseError

REFUSALS_SHOWN = 20
MOST_AT_ONCE = 50
PAST = {"start": "started", "stop": "stopped"}


@admin.register(Bottle)
class BottleAdmin(ReadOnlyAdmin):
    when_empty = "No bottles yet. Begin with 'manage.py bottle init NAME'."
    list_display = ["slug", "state", "what_is_wrong", "backend", "started_at", "created_at"]
    list_filter = ["state", "backend"]
    search_fields = ["slug"]
    actions = ["start", "stop"]
    fields = [
        "slug", "state", "what_is_wrong", "backend", "image", "started_at", "exit_code", "created_at",
        "token_rotated_at", "recent_refusals", "started_with", "approved_dockerfile",
    ]  # fmt: skip

    def get_queryset(self, request: HttpRequest) -> QuerySet[Bottle]:
        return super().get_queryset(request).defer("dockerfile", "manifest")  # the list shows neither

    def has_run_permission(self, request: HttpRequest) -> bool:
        return permissions.may_run(request.user)

    @admin.action(description="Start", permissions=["run"])
    def start(self, request: HttpRequest, queryset: QuerySet[Bottle]) -> None:
        self._begin("start", request, queryset)

    @admin.action(description="Stop", permissions=["run"])
    def stop(self, request: HttpRequest, queryset: QuerySet[Bottle]) -> None:
        self._begin("stop", request, queryset)

    def _begin(self, verb: str, request: HttpRequest, queryset: QuerySet[Bottle]) -> None:
        for bottle in queryset[:MOST_AT_ONCE]:
            try:
                lifecycle.begin(verb, bottle.slug, actor=request.user)
            except SuperviseError as error:
                self.message_user(request, f"{bottle.slug}: {error.message}", messages.ERROR)
            else:
                text = f"{bottle.slug}: being {PAST[verb]}. Its state here tells how it went."
                self.message_user(request, text, messages.SUCCESS)

    @admin.display(description="What is wrong")
    def what_is_wrong(self, bottle: Bottle) -> str:
        said = [text for text in (bottle.problem, bottle.backend_problem) if text]
        return sanitize.one_line(" ".join(said), 400) or "-"

    @admin.display(description="Manifest of the last start")
    def started_with(self, bottle: Bottle) -> str:
        return hostile(bottle.manifest) if bottle.manifest else "never started"

    @admin.display(description="Recent refusals by the proxy")
    def recent_refusals(self, bottle: Bottle) -> str:
        refused = bottle.traffic.filter(verdict="refused")[:REFUSALS_SHOWN]
        lines = (
            (
                f"{record.at:%Y-%m-%d %H:%M:%S} UTC",
                record.reason,
                hostile_line(f"{record.method} {record.scheme}://{record.host}{record.path}"),
            )
            for record in refused
        )
        return format_html_join("", "<div>{} <strong>{}</strong> <bdi>{}</bdi></div>", lines) or "none"

    @admin.display(description="Dockerfile")
    def approved_dockerfile(self, bottle: Bottle) -> str:
        return hostile(bottle.dockerfile) if bottle.dockerfile else "none approved"
