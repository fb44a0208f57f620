"""Bottles on the operator plane. Every address is for signed-in staff."""

from django.urls import path

from . import bottle_pages, bottles_page, route_pages

urlpatterns = [
    path("", bottles_page.bottles, name="bottles"),
    path("_strip/", bottle_pages.strip, name="bottles-strip"),
    path("<slug:slug>/", bottles_page.bottle, name="bottle"),
    path("<slug:slug>/rollback", bottles_page.rollback, name="rollback"),
    path("<slug:slug>/rotate", bottles_page.rotate, name="rotate-token"),
    path("<slug:slug>/start", bottles_page.start, name="start-bottle"),
    path("<slug:slug>/stop", bottles_page.stop, name="stop-bottle"),
    path("<slug:slug>/routes/<str:host>/", route_pages.route, name="route"),
    path("<slug:slug>/routes/<str:host>/change", route_pages.change, name="change-route"),
    path("<slug:slug>/routes/<str:host>/preview", route_pages.preview, name="preview-route"),
    path("<slug:slug>/routes/<str:host>/withdraw", route_pages.withdraw, name="withdraw-route"),
]
