"""A web worker's connection to a bottle's MCP server: lines of JSON on the host process's private socket.

The server's messages were made inside a bottle: they are passed to that same bottle, and not interpreted
further.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from asgiref.sync import sync_to_async

from botbottle.mcp_servers.host import MOST_LINE, SOCKET
from botbottle.mcp_servers.monitor import Phase, error_of
from botbottle.models import Bottle
from supervise.bottles import mcp_servers
from supervise.mcp.jsonrpc import Json, ProtocolError, RequestId

CONNECT_SECONDS = 20.0
RETRY_SECONDS = 0.1
START_GRACE = 10.0  # longer than the server's own time to start


class LinkFailed(Exception):
    """The server cannot be reached. `error` is a JSON-RPC error that names the phase."""

    def __init__(self, error: Json) -> None:
        super().__init__(error.get("message"))
        self.error = error

    def as_response(self, request_id: RequestId | None) -> Json:
        return {"jsonrpc": "2.0", "id": request_id, "error": self.error}


class Link:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    def send(self, message: Json) -> None:
        self._writer.write(json.dumps(message, ensure_ascii=True).encode() + b"\n")

    async def receive(self) -> Json:
        """Raises LinkFailed if the host process is gone."""
        try:
            line = await self._reader.readline()
            message: Any = json.loads(line) if line else None
        except (OSError, ValueError):
            message = None
        if not isinstance(message, dict):
            raise LinkFailed(error_of(Phase.RELAY_CONNECT, "The connection to the server broke. Call again."))
        return message


@asynccontextmanager
async def linked(bottle: Bottle, name: str, *, attach: bool = False) -> AsyncIterator[Link]:
    """Connect to the server, and wait until it is up. Raises LinkFailed."""
    if not await sync_to_async(mcp_servers.is_up, thread_sensitive=True)(bottle):
        reason = f"The bottle {bottle.slug} does not run. Start it."
        raise LinkFailed(error_of(Phase.BOX_UNAVAILABLE, reason))
    reader, writer = await _connect(bottle)
    link = Link(reader, writer)
    try:
        link.send({"server": name, "attach": attach})
        seconds = mcp_servers.servers_of(bottle)[name].startup_timeout + START_GRACE
        try:
            async with asyncio.timeout(seconds):
                first = await link.receive()
        except TimeoutError:
            reason = f"The server {name} is not up after {seconds:g} s. Call again later."
            raise LinkFailed(error_of(Phase.RELAY_CONNECT, reason)) from None
        if "refused" in first:
            raise LinkFailed(first["refused"])
        yield link
    finally:
        writer.close()


async def _connect(bottle: Bottle) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to the host process. Start it if needed: an agent may call before the background job does."""
    deadline = time.monotonic() + CONNECT_SECONDS
    run = mcp_servers.run_directory(bottle)
    while True:
        try:
            directory = os.open(
                run, os.O_PATH | os.O_DIRECTORY
            )  # its path may be too long for a socket address
            try:
                return await asyncio.open_unix_connection(
                    f"/proc/self/fd/{directory}/{SOCKET}", limit=MOST_LINE
                )
            finally:
                os.close(directory)
        except OSError:
            if time.monotonic() > deadline:
                reason = "The bottle's MCP servers are not being served. Call again, or tell the operator."
                raise LinkFailed(error_of(Phase.RELAY_CONNECT, reason)) from None
        await sync_to_async(mcp_servers.ensure, thread_sensitive=True)(bottle)
        await asyncio.sleep(RETRY_SECONDS)


def unknown(bottle: Bottle, name: str) -> ProtocolError:
    known = ", ".join(mcp_servers.servers_of(bottle)) or "none"
    return ProtocolError(
        -32600, f"This bottle has no MCP server {name[:40]!a}. It has: {known}.", http_status=404
    )
