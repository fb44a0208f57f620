"""All URLs of the agent plane. Anything else does not exist there."""

from __future__ import annotations

from django.urls import path, re_path

from supervise.mcp import rpc, views
from supervise.mcp.servers import http as managed_relay

urlpatterns = [
    path("", views.McpView.as_view(), name="mcp-root"),
    re_path(r"^mcp/?$", views.McpView.as_view(), name="mcp"),
    re_path(
        r"^mcp/servers/(?P<name>[a-z0-9-]{1,40})/?$", managed_relay.ManagedView.as_view(), name="managed"
    ),
    path("rpc", rpc.RpcView.as_view(), name="rpc"),
    re_path(r"^(?:memory/)?session-context$", rpc.ContextView.as_view(), name="session-context"),
    path("health", views.health, name="health"),
    path("healthz", views.healthz, name="healthz"),
    re_path(r"", views.not_found),
]
