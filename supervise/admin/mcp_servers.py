"""MCP servers of bottles in the admin: their condition; stop, start and restart. Stderr was written in a
bottle.
"""

from __future__ import annotations

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest

from botbottle.admin import ReadOnlyAdmin, hostile
from botbottle.core import sanitize
from supervise.access import permissions
from supervise.bottles import mcp_servers
from supervise.errors import SuperviseError
from supervise.models import ManagedServer

MOST_AT_ONCE = 50


@admin.register(ManagedServer)
class ManagedServerAdmin(ReadOnlyAdmin):
    when_empty = "No managed servers yet. A bottle has those that its manifest names under mcp_servers."
    list_display = ["name", "bottle", "condition", "phase", "what_is_wrong", "exit_code", "restarts"]
    list_select_related = ["bottle"]
    list_filter = ["condition", "phase"]
    search_fields = ["name", "bottle__slug"]
    actions = ["start", "stop", "restart"]
    fields = [
        "bottle", "name", "condition", "is_wanted", "phase", "what_is_wrong", "exit_code", "restarts",
        "dropped_lines", "variables", "limits", "started_at", "updated_at", "said",
    ]  # fmt: skip

    def has_run_permission(self, request: HttpRequest) -> bool:
        return permissions.may_run(request.user)

    @admin.display(description="What is wrong")
    def what_is_wrong(self, server: ManagedServer) -> str:
        return sanitize.one_line(server.problem, 400) or "-"

    @admin.display(description="Variables (names only)")
    def variables(self, server: ManagedServer) -> str:
        return ", ".join(server.env_names) or "none"

    @admin.display(description="The last on stderr, unverified")
    def said(self, server: ManagedServer) -> str:
        return hostile(server.stderr) if server.stderr else "nothing"

    @admin.action(description="Start", permissions=["run"])
    def start(self, request: HttpRequest, queryset: QuerySet[ManagedServer]) -> None:
        self._act("start", request, queryset)

    @admin.action(description="Stop", permissions=["run"])
    def stop(self, request: HttpRequest, queryset: QuerySet[ManagedServer]) -> None:
        self._act("stop", request, queryset)

    @admin.action(description="Restart", permissions=["run"])
    def restart(self, request: HttpRequest, queryset: QuerySet[ManagedServer]) -> None:
        self._act("restart", request, queryset)

    def _act(self, verb: str, request: HttpRequest, queryset: QuerySet[ManagedServer]) -> None:
        for server in queryset.select_related("bottle")[:MOST_AT_ONCE]:
            try:
                mcp_servers.act_for(verb, server, actor=request.user)
            except SuperviseError as error:
                self.message_user(request, f"{server}: {error.message}", messages.ERROR)
            else:
                self.message_user(request, f"{server}: {mcp_servers.PAST[verb]}.", messages.SUCCESS)
