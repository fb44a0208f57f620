"""One MCP session with a managed server, shared by several clients with separate request ids.

The handshake with the server is made once, and a client's own is answered from it. Both sides are untrusted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from botbottle.mcp_servers.process import Gone, StdioProcess

Json = dict[str, Any]
VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
METHOD_NOT_FOUND, INTERNAL_ERROR = -32601, -32603
MOST_WAITING = 256  # concurrent calls

Notify = Callable[[Json], None]


class BadHandshake(Exception):
    """The server does not speak MCP correctly."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A client's pending request; `notify` gets the response, and progress before it."""

    client: int
    id: Any
    notify: Notify
    progress_token: Any = None


class Session:
    def __init__(self, process: StdioProcess) -> None:
        self.process = process
        process.on_message = self.hear
        self.initialized: Json = {}
        self._number = 0
        self._waiting: dict[int, _Waiting] = {}
        self._listeners: dict[int, Notify] = {}

    # the host's own requests

    async def request(self, method: str, params: Json | None = None) -> Json:
        """Send a request; returns the response, error or not. Raises Gone when the server ends first."""
        answer: asyncio.Future[Json] = asyncio.get_running_loop().create_future()

        def resolve(message: Json) -> None:
            if not answer.done():
                answer.set_result(message)

        number = self._register(_Waiting(0, 0, resolve))
        ended = asyncio.ensure_future(self.process.ended.wait())
        try:
            message: Json = {"jsonrpc": "2.0", "id": number, "method": method}
            await self.process.send({**message, "params": params} if params is not None else message)
            waits: set[asyncio.Future[Any]] = {answer, ended}
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise Gone
            return answer.result()
        finally:
            ended.cancel()
            self._waiting.pop(number, None)

    async def handshake(self) -> None:
        """Raises BadHandshake, Gone."""
        client = {"name": "bot-bottle", "version": "1"}
        params = {"protocolVersion": VERSIONS[-1], "capabilities": {}, "clientInfo": client}
        response = await self.request("initialize", params)
        result = response.get("result")
        if not isinstance(result, dict) or result.get("protocolVersion") not in VERSIONS:
            said = str(response.get("error") or result)[:200]
            raise BadHandshake(f"initialize was not answered as MCP wants it: {said!a}")
        if not isinstance(result.get("capabilities"), dict) or not isinstance(result.get("serverInfo"), dict):
            raise BadHandshake("the answer to initialize has no capabilities or no serverInfo")
        await self.process.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        self.initialized = result

    # clients

    def listen(self, client: int, notify: Notify) -> None:
        """Send the server's notifications to this client too."""
        self._listeners[client] = notify

    def leave(self, client: int) -> None:
        self._listeners.pop(client, None)
        for number, waiting in list(self._waiting.items()):
            if waiting.client == client:
                del self._waiting[number]

    async def forward(self, client: int, message: Json, notify: Notify) -> None:
        """Forward one checked message of a client. Raises Gone."""
        method = message.get("method")
        if method == "initialize":
            notify({"jsonrpc": "2.0", "id": message.get("id"), "result": self._greeting(message)})
        elif method == "ping" and "id" in message:
            notify({"jsonrpc": "2.0", "id": message["id"], "result": {}})
        elif method == "notifications/cancelled":
            await self._cancel(client, message)
        elif isinstance(method, str) and "id" in message:
            await self._ask(client, message, notify)
        # Other notifications concern the handshake or capabilities, which are handled here for all clients.

    async def _ask(self, client: int, message: Json, notify: Notify) -> None:
        if len(self._waiting) >= MOST_WAITING:
            error = {"code": INTERNAL_ERROR, "message": "Too many calls are under way. Try again later."}
            notify({"jsonrpc": "2.0", "id": message["id"], "error": error})
            return
        params = message.get("params") or {}
        meta = params.get("_meta")
        token = meta.get("progressToken") if isinstance(meta, dict) else None
        number = self._register(_Waiting(client, message["id"], notify, token))
        if isinstance(meta, dict) and token is not None:
            params = {**params, "_meta": {**meta, "progressToken": number}}
        try:
            await self.process.send(
                {"jsonrpc": "2.0", "id": number, "method": message["method"], "params": params}
            )
        except Gone:
            self._waiting.pop(number, None)
            raise

    async def _cancel(self, client: int, message: Json) -> None:
        params = message.get("params") or {}
        for number, waiting in self._waiting.items():
            if waiting.client == client and waiting.id == params.get("requestId"):
                named = {**params, "requestId": number}
                await self.process.send(
                    {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": named}
                )
                return

    def _greeting(self, message: Json) -> Json:
        """Answer in the client's version if it is not newer: older clients ignore what newer versions add."""
        wanted = (message.get("params") or {}).get("protocolVersion")
        have = self.initialized["protocolVersion"]
        version = wanted if wanted in VERSIONS and VERSIONS.index(wanted) <= VERSIONS.index(have) else have
        return {**self.initialized, "protocolVersion": version}

    def _register(self, waiting: _Waiting) -> int:
        self._number += 1
        self._waiting[self._number] = waiting
        return self._number

    # the server

    def hear(self, message: Json) -> None:
        method, number = message.get("method"), message.get("id")
        if isinstance(method, str) and number is not None:
            self._answer(method, number)
        elif isinstance(method, str):
            self._notify_clients(message)
        elif type(number) is int and number in self._waiting and "method" not in message:
            kinds = [kind for kind in ("result", "error") if kind in message]
            if len(kinds) == 1:
                waiting = self._waiting.pop(number)
                waiting.notify({"jsonrpc": "2.0", "id": waiting.id, kinds[0]: message[kinds[0]]})

    def _answer(self, method: str, number: Any) -> None:
        """Answer the server. We advertised no client capabilities, so only `ping` gets a result."""
        answer: Json = {"jsonrpc": "2.0", "id": number, "result": {}}
        if method != "ping":
            error = {"code": METHOD_NOT_FOUND, "message": "No client of this relay serves requests."}
            answer = {"jsonrpc": "2.0", "id": number, "error": error}
        asyncio.ensure_future(self._send_quietly(answer))  # noqa: RUF006 - short, and nobody waits for it

    async def _send_quietly(self, message: Json) -> None:
        with suppress(Gone):
            await self.process.send(message)

    def _notify_clients(self, message: Json) -> None:
        params = message.get("params")
        if message["method"] == "notifications/progress" and isinstance(params, dict):
            token = params.get("progressToken")
            waiting = self._waiting.get(token) if type(token) is int else None
            if waiting is not None and waiting.progress_token is not None:
                waiting.notify({**message, "params": {**params, "progressToken": waiting.progress_token}})
            return
        for notify in list(self._listeners.values()):
            notify(message)

    def fail_all(self, error: Json) -> None:
        """Report the end of the server to every waiting client."""
        waiting, self._waiting = self._waiting, {}
        for each in waiting.values():
            if each.client:
                each.notify({"jsonrpc": "2.0", "id": each.id, "error": error})
