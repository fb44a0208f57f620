"""One ASGI application for both planes; the listener decides which half of it a connection can see."""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Any

import django
from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.core.handlers.asgi import ASGIHandler
from django.http import HttpRequest
from django.http.response import HttpResponseBase

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "botbottle.settings")
django.setup(set_prefix=False)

from channels.auth import AuthMiddlewareStack  # noqa: E402
from channels.routing import URLRouter  # noqa: E402
from django.urls import path, re_path  # noqa: E402

from botbottle.origins import OwnOriginOnly  # noqa: E402
from botbottle.planes import Plane  # noqa: E402
from supervise.consumers import QueueConsumer  # noqa: E402
from supervise.log_consumer import LogConsumer  # noqa: E402
from supervise.mcp.managed_socket import ManagedConsumer  # noqa: E402

MANAGED = re.compile(r"^/?mcp/servers/(?P<name>[a-z0-9-]{1,40})/?$")
Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


class OneThread(ThreadPoolExecutor):
    """A thread, and how much it has to do: what it is at counts as well as what waits for it."""

    def __init__(self, name: str) -> None:
        super().__init__(1, name)
        self._counting = Lock()
        self.jobs = 0

    def submit(self, *arguments: Any, **named: Any) -> Future[Any]:
        with self._counting:
            self.jobs += 1
        future = super().submit(*arguments, **named)
        future.add_done_callback(self._done)
        return future

    def _done(self, _: Future[Any]) -> None:
        with self._counting:
            self.jobs -= 1


class BoundedThreads:
    """Runs Django's synchronous work on a few long-lived threads instead of a new one per request.

    Threads that live on keep their database connections. A call that only waits occupies none of them.
    """

    def __init__(self, application: Application, threads: int = 8) -> None:
        self.application = application
        self._executors = [OneThread(f"django-{number}") for number in range(threads)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # A waiting call is no job, so the thread with the fewest is the idlest.
        executor = min(self._executors, key=lambda candidate: candidate.jobs)
        self._executors.remove(executor)
        self._executors.append(executor)
        async with ThreadSensitiveContext(executor=executor):
            await self.application(scope, receive, send)


class OneTripHandler(ASGIHandler):
    """Django's handler, with the whole of a request done in one trip to a thread.

    All our middleware and views are synchronous; called one by one from the loop, each would be a trip.
    """

    def load_middleware(self, is_async: bool = False) -> None:
        super().load_middleware(is_async=False)

    async def get_response_async(self, request: HttpRequest) -> HttpResponseBase:
        return await sync_to_async(self.get_response, thread_sensitive=True)(request)


async def _by_plane(scope: Scope, receive: Receive, send: Send) -> None:
    plane = scope.get("plane")  # the server's word; None: a server that is not ours, which serves nothing
    # Daphne fills this from a request header, which on the agent plane is the agent's to choose.
    scope["root_path"] = ""
    if scope["type"] == "http" and plane is not None:
        await http_application(scope, receive, send)
    elif scope["type"] == "websocket" and plane is Plane.OPERATOR:
        await websocket_application(scope, receive, send)
    elif scope["type"] == "websocket" and plane is not None and MANAGED.match(scope["path"]):
        await agent_websocket_application(scope, receive, send)
    elif scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 4404})
    else:
        await send({"type": "http.response.start", "status": 404, "headers": []})
        await send({"type": "http.response.body", "body": b"Not found.\n"})


http_application = OneTripHandler()
websocket_application = OwnOriginOnly(
    AuthMiddlewareStack(
        URLRouter(
            [path("ws/queue/", QueueConsumer.as_asgi()), path("ws/rebuild-log/", LogConsumer.as_asgi())]
        )
    )
)
# No sessions, no cookies: an agent proves itself as on every request of its plane.
agent_websocket_application = URLRouter([re_path(MANAGED.pattern, ManagedConsumer.as_asgi())])
application = BoundedThreads(_by_plane)
