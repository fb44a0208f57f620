"""Route tables, traffic and events of the proxy in the admin, read-only."""

from __future__ import annotations

from django.contrib import admin

from botbottle.admin import HistoryAdmin, ReadOnlyAdmin, hostile, hostile_json, hostile_line
from egress.models import ProxyEvent, Publication, RouteTableVersion, TrafficRecord
from egress.traffic import proxy_health


@admin.register(RouteTableVersion)
class RouteTableVersionAdmin(HistoryAdmin):
    when_empty = (
        "No tables yet. Each bottle has one from its first day on, and a new version with every change."
    )
    list_display = ["bottle", "version", "author", "cause", "created_at"]
    list_select_related = ["bottle"]
    list_filter = ["created_at"]
    ordering = ["-created_at"]
    search_fields = ["bottle__slug", "author", "cause"]
    fields = ["bottle", "version", "parent", "author", "cause", "created_at", "routes"]

    @admin.display(description="Routes")
    def routes(self, version: RouteTableVersion) -> str:
        return hostile_json(version.content)


@admin.register(Publication)
class PublicationAdmin(ReadOnlyAdmin):
    when_empty = (
        "Nothing is published yet. Each bottle has one line here: the table that is "
        "written, and the one that is live."
    )
    list_display = ["bottle", "version", "published_at", "live_version", "live_at", "problem"]
    list_select_related = ["bottle"]
    search_fields = ["bottle__slug"]
    fields = [
        "bottle", "home", "version", "published_at", "live_version", "live_at", "problem",
        "shown_proxy_problems",
    ]  # fmt: skip

    @admin.display(description="What the egress proxy says is wrong")
    def shown_proxy_problems(self, publication: Publication) -> str:
        return hostile("\n".join(publication.proxy_problems)) if publication.proxy_problems else "nothing"


@admin.register(TrafficRecord)
class TrafficRecordAdmin(ReadOnlyAdmin):
    when_empty = (
        "No traffic yet. Every request of a bottle to the egress proxy is listed here, allowed or refused."
    )
    list_display = [
        "at", "bottle", "verdict", "reason", "method", "shown_host", "shown_path", "status", "duration_ms",
    ]  # fmt: skip
    list_select_related = ["bottle"]
    list_filter = ["verdict", "reason", "method", "status", "at", "bottle"]
    search_fields = ["host", "bottle__slug"]
    fields = [
        "at", "bottle", "verdict", "reason", "method", "scheme", "shown_host", "shown_path", "route",
        "table_version", "status", "bytes_out", "bytes_in", "first_byte_ms", "duration_ms",
        "shown_finding", "shown_warnings", "would_ask",
    ]  # fmt: skip

    def list_note(self) -> str:
        return proxy_health.losses()

    @admin.display(description="host", ordering="host")
    def shown_host(self, record: TrafficRecord) -> str:
        return hostile_line(record.host)

    @admin.display(description="path")
    def shown_path(self, record: TrafficRecord) -> str:
        return hostile_line(record.path)

    @admin.display(description="Secret that was stopped")
    def shown_finding(self, record: TrafficRecord) -> str:
        return hostile_json(record.finding) if record.finding else "none"

    @admin.display(description="Seen in the answer")
    def shown_warnings(self, record: TrafficRecord) -> str:
        return hostile_line(", ".join(record.warnings)) or "nothing"

    @admin.display(description="Tool call that would ask for it")
    def would_ask(self, record: TrafficRecord) -> str:
        return hostile_json(record.ask) if record.ask else "none"


@admin.register(ProxyEvent)
class ProxyEventAdmin(ReadOnlyAdmin):
    when_empty = "No events yet: the egress proxy was never away."
    list_display = ["at", "kind", "text"]
    list_filter = ["kind", "at"]
    fields = ["at", "kind", "text", "home", "process"]
