"""A proposal's rebuild on the operator plane. Every address is for signed-in staff."""

from django.urls import path

from supervise.console import rebuild_views

urlpatterns = [
    path("", rebuild_views.panel, name="rebuild"),
    path("again", rebuild_views.again, name="rebuild-again"),
    path("roll-back", rebuild_views.roll_back, name="rebuild-roll-back"),
]
