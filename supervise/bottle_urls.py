"""Bottles on the operator plane. Every address is for signed-in staff."""

from django.urls import path

from . import bottle_pages

urlpatterns = [path("strip/", bottle_pages.strip, name="bottles-strip")]
