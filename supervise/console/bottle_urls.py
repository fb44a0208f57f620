"""Bottles on the operator plane. Every address is for signed-in staff."""

from django.urls import path

from supervise.console import bottle_strip, bottle_views, route_views

urlpatterns = [
    path("", bottle_views.bottles, name="bottles"),
    path("_strip/", bottle_strip.strip, name="bottles-strip"),
    path("<slug:slug>/", bottle_views.bottle, name="bottle"),
    path("<slug:slug>/rollback", bottle_views.rollback, name="rollback"),
    path("<slug:slug>/rotate", bottle_views.rotate, name="rotate-token"),
    path("<slug:slug>/start", bottle_views.start, name="start-bottle"),
    path("<slug:slug>/stop", bottle_views.stop, name="stop-bottle"),
    path("<slug:slug>/routes/<str:host>/", route_views.route, name="route"),
    path("<slug:slug>/routes/<str:host>/change", route_views.change, name="change-route"),
    path("<slug:slug>/routes/<str:host>/preview", route_views.preview, name="preview-route"),
    path("<slug:slug>/routes/<str:host>/withdraw", route_views.withdraw, name="withdraw-route"),
]
