"""Runs Django on a few long-lived threads: each owner's requests get their turns."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.core.handlers.asgi import ASGIHandler
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from botbottle.web.fair_threads import FairThreads
from botbottle.web.overload import BEGUN, Line, RecentOwners, refuse
from botbottle.web.owners import Kind, Owner, owner_of
from botbottle.web.planes import Plane

HEALTH = ("/health", "/healthz")
Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


class FairRequests:
    """An ASGI application that runs Django on threads, each owner's requests in turn.

    An owner has few requests under way at a time: each is also work for the shared event loop. The others
    wait in line, and a full line refuses without using a thread. A waiting call has sent its headers, so it
    does not count; and it occupies no thread.
    """

    def __init__(self, application: Application, threads: FairThreads | None = None) -> None:
        self.application = application
        self.threads = threads or FairThreads()
        self._lines: dict[Owner, Line] = {}
        self._recent_owners = RecentOwners()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("plane") is None:  # set by our server; any other server serves nothing
            await not_served(scope, send)
            return
        owner = _owner(scope)
        self._recent_owners.record(owner)
        line = self._lines.get(owner) or Line(owner.kind, partial(self._recent_owners.most_begun, owner))
        if line.is_full:
            await refuse(owner, scope, send)
            return
        self._lines[owner] = line
        try:
            await self._serve(line, owner, (scope, receive, send))
        finally:
            if line.is_empty:
                self._lines.pop(owner, None)

    async def _serve(self, line: Line, owner: Owner, connection: tuple[Scope, Receive, Send]) -> None:
        scope, receive, send = connection
        async with line.turn() as answered, ThreadSensitiveContext(executor=self.threads.of(owner)):
            scope[BEGUN] = True

            async def send_first(message: Any) -> None:
                answered()
                await send(message)

            await self.application(scope, receive, send_first)


def _owner(scope: Scope) -> Owner:
    client = scope.get("client")
    address = client[0] if client else None
    if scope["path"] in HEALTH and scope["plane"] is not Plane.OPERATOR:
        return Owner(Kind.AGENTS, ("health", address))  # health checks wait for nobody else's work
    return owner_of(scope["plane"], address, scope["headers"])


class OneTripHandler(ASGIHandler):
    """Django's handler, with a whole request done in one switch to a thread.

    All our middleware and views are synchronous; called one by one from the loop, each would be a switch.
    """

    def load_middleware(self, is_async: bool = False) -> None:
        super().load_middleware(is_async=False)

    async def get_response_async(self, request: HttpRequest) -> HttpResponseBase:
        return await sync_to_async(self.get_response, thread_sensitive=True)(request)


async def not_served(scope: Scope, send: Send) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 4404})
    else:
        await send({"type": "http.response.start", "status": 404, "headers": []})
        await send({"type": "http.response.body", "body": b"Not found.\n"})
