"""The official SDK's client over both relays, as a bottle's own socket or its token lets it in."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import websockets
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

HTTP, WEBSOCKET = "http", "websocket"


@asynccontextmanager
async def speaking(socket: Path, name: str, relay: str, mode: str = "legacy") -> AsyncIterator[Client]:
    """A client on the bottle's agent socket, which is where the bridge inside of it leads."""
    transport = _http(socket, name) if relay == HTTP else _websocket(socket, name)
    async with Client(transport, mode=mode, read_timeout_seconds=60) as client:
        yield client


@asynccontextmanager
async def _http(socket: Path, name: str) -> AsyncIterator[Any]:
    uds = httpx2.AsyncHTTPTransport(uds=str(socket))
    async with (
        httpx2.AsyncClient(transport=uds, timeout=60, trust_env=False) as http,
        streamable_http_client(f"http://127.0.0.1:9100/mcp/servers/{name}", http_client=http) as streams,
    ):
        yield streams


@asynccontextmanager
async def _websocket(socket: Path, name: str) -> AsyncIterator[Any]:
    """The SDK's own was for its first version; this is the same few lines for its second."""
    heard_in, heard = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    to_say, said = anyio.create_memory_object_stream[SessionMessage](0)
    url = f"ws://127.0.0.1:9100/mcp/servers/{name}"
    async with websockets.unix_connect(
        str(socket), url, subprotocols=[websockets.Subprotocol("mcp")], max_size=None
    ) as connection:
        assert connection.subprotocol == "mcp"

        async def hear() -> None:
            async with heard_in:
                async for frame in connection:
                    await heard_in.send(SessionMessage(jsonrpc_message_adapter.validate_json(frame)))

        async def say() -> None:
            async with said:
                async for message in said:
                    text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                    await connection.send(text)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hear)
            tasks.start_soon(say)
            yield heard, to_say
            tasks.cancel_scope.cancel()
