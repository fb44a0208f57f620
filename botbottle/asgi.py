"""The ASGI application for both planes. The listener decides which half of it a connection can see."""

from __future__ import annotations

import os
import re

import django
from django.core.signals import request_started
from django.db import close_old_connections, reset_queries

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "botbottle.settings")
django.setup(set_prefix=False)

from channels.auth import AuthMiddlewareStack  # noqa: E402
from channels.routing import URLRouter  # noqa: E402
from django.urls import path, re_path  # noqa: E402

from botbottle.web.planes import Plane  # noqa: E402
from botbottle.web.threads import FairRequests, OneTripHandler, Receive, Scope, Send, not_served  # noqa: E402
from botbottle.web.websockets import ClosedOnFault  # noqa: E402
from botbottle.web.ws_origin import OwnOriginOnly  # noqa: E402
from supervise.console.websockets import LogConsumer, QueueConsumer  # noqa: E402
from supervise.mcp.servers.websocket import ManagedConsumer  # noqa: E402

MANAGED = re.compile(r"^/?mcp/servers/(?P<name>[a-z0-9-]{1,40})/?$")


async def _by_plane(scope: Scope, receive: Receive, send: Send) -> None:
    # Daphne fills this from a request header, which on the agent plane is the agent's to choose.
    scope["root_path"] = ""
    if scope["type"] == "http":
        await http_application(scope, receive, send)
    elif scope["plane"] is Plane.OPERATOR:
        await websocket_application(scope, receive, send)
    elif MANAGED.match(scope["path"]):
        await agent_websocket_application(scope, receive, send)
    else:
        await not_served(scope, send)


http_application = OneTripHandler()
websocket_application = OwnOriginOnly(
    ClosedOnFault(
        AuthMiddlewareStack(
            URLRouter(
                [path("ws/queue/", QueueConsumer.as_asgi()), path("ws/rebuild-log/", LogConsumer.as_asgi())]
            )
        )
    )
)
# No sessions, no cookies: an agent proves itself as on every request of its plane.
agent_websocket_application = ClosedOnFault(URLRouter([re_path(MANAGED.pattern, ManagedConsumer.as_asgi())]))
application = FairRequests(_by_plane)
# The threads do this before each piece of work. As receivers, each would cost a switch to a thread.
request_started.disconnect(close_old_connections)
request_started.disconnect(reset_queries)
