"""A websocket to a bottle's MCP server (subprotocol `mcp`), for clients of the agent plane only.

Text frames are messages, in both directions. Identity, Host and Origin are checked as for every request of an
agent.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import AsyncExitStack, aclosing
from typing import Any

from asgiref.sync import sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer
from django.conf import settings
from django.db import DatabaseError
from rest_framework.exceptions import APIException

from botbottle.models import Bottle
from botbottle.web.access_log import AccessEntry
from botbottle.web.bottle_auth import bottle_of_scope
from supervise.bottles import mcp_servers
from supervise.mcp import http_checks
from supervise.mcp.dispatch import unavailable
from supervise.mcp.jsonrpc import (
    INTERNAL_ERROR,
    ClientResponse,
    Envelope,
    Json,
    ProtocolError,
    decode,
    encode,
    read_envelope,
)
from supervise.mcp.protocol import McpRequest
from supervise.mcp.servers.http import frames_of, tool_of
from supervise.mcp.servers.link import Link, LinkFailed, linked
from supervise.mcp.versions import NEWEST_HANDSHAKE, Era

log = logging.getLogger(__name__)
SUBPROTOCOL = "mcp"
NOT_SERVED, NO_TEXT, TOO_MUCH = 4503, 1003, 1009
MOST_WAITING = 32  # calls of one socket that wait for an operator


class ManagedConsumer(AsyncWebsocketConsumer):  # type: ignore[misc]
    """One attachment to one server. Other bottles' servers are refused before the handshake."""

    bottle: Bottle
    name: str
    link: Link

    async def connect(self) -> None:
        self._stack = AsyncExitStack()
        self._tasks: set[asyncio.Task[None]] = set()
        entry = AccessEntry("WEBSOCKET", self.scope["path"])
        name = self.scope["url_route"]["kwargs"]["name"]
        try:
            self.bottle = await sync_to_async(self._proven)()
        except (ProtocolError, APIException):
            entry.write(403)
            await self.close()
            return
        entry.bottle, self.name = self.bottle.slug, name
        entry.write(101)
        await self.accept(SUBPROTOCOL)
        try:
            self.link = await self._stack.enter_async_context(linked(self.bottle, name, attach=True))
        except LinkFailed as failure:
            await self._close_after(failure)
            return
        self._start(self._pump())

    def _proven(self) -> Bottle:
        """Authenticate the bottle. Raises ProtocolError or APIException."""
        headers = {
            key.decode("latin-1").lower(): value.decode("latin-1") for key, value in self.scope["headers"]
        }
        http_checks.check_host(headers, settings.SUPERVISE_BIND, settings.SUPERVISE_HOSTS)
        http_checks.check_origin(headers, settings.SUPERVISE_BIND, settings.SUPERVISE_HOSTS)
        bottle = bottle_of_scope(self.scope)
        if SUBPROTOCOL not in self.scope.get("subprotocols", ()):
            raise ProtocolError(-32600, f"Ask for the subprotocol {SUBPROTOCOL}.")
        if self.scope["url_route"]["kwargs"]["name"] not in mcp_servers.servers_of(bottle):
            raise ProtocolError(-32600, "This bottle has no such server.")
        return bottle

    async def disconnect(self, code: int) -> None:
        for task in list(self._tasks):
            task.cancel()
        await self._stack.aclose()

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None, **_: Any) -> None:
        if not hasattr(self, "link"):
            return
        if text_data is None:
            await self.close(NO_TEXT, "Send text frames.")
            return
        try:
            if len(text_data) > settings.SUPERVISE_MAX_BODY_BYTES:
                raise http_checks.too_large(settings.SUPERVISE_MAX_BODY_BYTES)
            value = decode(text_data.encode("utf-8", "surrogatepass"))
            envelope = read_envelope(value)
        except ProtocolError as error:
            await self._send(error.as_response())
        except ClientResponse:
            pass  # we ask nothing, so there is nothing to answer
        else:
            await self._handle(value, envelope)

    async def _handle(self, value: Json, envelope: Envelope) -> None:
        try:
            tool = tool_of(envelope)
        except ProtocolError as error:
            error.request_id = envelope.id
            await self._send(error.as_response())
            return
        if (
            tool is None
            or envelope.id is None
            or not mcp_servers.servers_of(self.bottle)[self.name].asks(tool)
        ):
            self.link.send(value)
        elif len(self._tasks) > MOST_WAITING:
            busy = ProtocolError(-32603, "Too many calls wait for an operator.", request_id=envelope.id)
            await self._send(busy.as_response())
        else:
            self._start(self._ask(envelope))

    async def _ask(self, envelope: Envelope) -> None:
        """Handle a call that an operator decides, as the HTTP relay does."""
        request = McpRequest(Era.HANDSHAKE, NEWEST_HANDSHAKE, envelope.method, envelope.params, envelope.id)
        try:
            frames = await sync_to_async(frames_of)(self.bottle, self.name, request, time.monotonic())
        except DatabaseError as error:
            log.error("A call could not be filed.", exc_info=error)
            refusal = unavailable(error, None) or ProtocolError(INTERNAL_ERROR, "Internal error.")
            refusal.request_id = envelope.id
            await self._send(refusal.as_response())
            return
        async with aclosing(frames):
            async for frame in frames:
                if frame is not None:
                    await self._send(frame)

    async def _pump(self) -> None:
        """Forward the server's messages, until it or the client is gone."""
        try:
            while True:
                await self._send(await self.link.receive())
        except LinkFailed as failure:
            await self._close_after(failure)

    async def _close_after(self, failure: LinkFailed) -> None:
        """Send the phase as a message, because not every client shows why a socket was closed."""
        await self._send(failure.as_response(None))
        await self.close(NOT_SERVED)

    async def _send(self, message: Json) -> None:
        await self.send(text_data=encode(message).decode("ascii"))

    def _start(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
