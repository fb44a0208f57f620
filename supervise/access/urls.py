"""Signing in through the identity provider: for users who are not signed in yet."""

from django.urls import path

from supervise.access import oidc

urlpatterns = [
    path("begin/", oidc.Begin.as_view(), name="oidc_authentication_init"),
    path("return/", oidc.Return.as_view(), name="oidc_authentication_callback"),
]
