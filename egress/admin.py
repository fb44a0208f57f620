"""Route tables and their publications in the admin, to look at."""

from __future__ import annotations

from django.contrib import admin

from botbottle.admin import ReadOnlyAdmin, hostile_json

from .models import Publication, RouteTableVersion


@admin.register(RouteTableVersion)
class RouteTableVersionAdmin(ReadOnlyAdmin):
    list_display = ["bottle", "version", "author", "cause", "created_at"]
    list_select_related = ["bottle"]
    list_filter = ["created_at"]
    search_fields = ["bottle__slug", "author", "cause"]
    fields = ["bottle", "version", "parent", "author", "cause", "created_at", "routes"]

    @admin.display(description="Routes")
    def routes(self, version: RouteTableVersion) -> str:
        return hostile_json(version.content)


@admin.register(Publication)
class PublicationAdmin(ReadOnlyAdmin):
    list_display = ["bottle", "version", "published_at", "problem"]
    list_select_related = ["bottle"]
    search_fields = ["bottle__slug"]
    fields = ["bottle", "version", "published_at", "problem"]
