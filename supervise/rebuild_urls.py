"""A proposal's rebuild on the operator plane. Every address is for signed-in staff."""

from django.urls import path

from . import rebuild_pages

urlpatterns = [
    path("", rebuild_pages.panel, name="rebuild"),
    path("again", rebuild_pages.again, name="rebuild-again"),
    path("roll-back", rebuild_pages.roll_back, name="rebuild-roll-back"),
]
