"""The control plane's door: reload a bottle and get the ack, read the status, fetch records.

Trust boundary: a Unix socket (0600) of the operator's own user. Nothing here is reachable from a bottle.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from egress.contract.ack import Ack
from egress.proxy.errors import Gone, Refusal
from egress.proxy.http.heads import parse_request
from egress.proxy.http.reader import read_head
from egress.proxy.net.connection import Connection, Wakeup
from egress.proxy.process.listeners import Listeners
from egress.proxy.process.unix import bind_unix
from egress.proxy.request import builtin_endpoints
from egress.proxy.state.bottle import SLUG
from egress.proxy.state.proxy import Proxy
from egress.proxy.state.records import Batch

log = logging.getLogger(__name__)
_MAX_WAIT = 30.0
_TO_THE_END = ("/records", "/status")  # answered while the process stops: what it did has to be noted
_RELOAD = re.compile(rf"/reload/({SLUG.pattern})")
_ROUTES = re.compile(rf"/bottles/({SLUG.pattern})/routes")


class Control:
    def __init__(self, proxy: Proxy, listeners: Listeners) -> None:
        self._proxy = proxy
        self._listeners = listeners
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def open(self, path: Path) -> None:
        listening = bind_unix(path, mode=0o600)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(self._accepted, sock=listening)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accepted(self) -> Connection:
        def opened(connection: Connection) -> None:
            task = asyncio.get_running_loop().create_task(self._serve(connection))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        return Connection(Wakeup(), self._proxy.watch, opened)

    async def _serve(self, connection: Connection) -> None:
        limits = self._proxy.limits
        try:
            silence = limits.keep_alive_seconds
            while (raw := await read_head(connection, limits, lambda: False, silence=silence)) is not None:
                head = parse_request(raw, max_fields=limits.head_fields)
                if head.length:
                    raise Refusal("bad-body", "The control socket takes no request bodies.", 400)
                connection.deadline = float("inf")
                path, _, query = head.target.decode("ascii").partition("?")
                status, answer = await self._answer(head.method, path, parse_qs(query))
                connection.write(_response(status, answer))
        except Refusal as refusal:
            connection.write(_response(refusal.status, {"error": refusal.sentence}))
        except Gone:
            connection.abort()
        finally:
            connection.close()

    async def _answer(self, method: str, path: str, query: dict[str, list[str]]) -> tuple[int, Any]:
        if self._proxy.stopping and path not in _TO_THE_END:
            raise Gone  # nothing becomes live any more, and what is live says nothing of our successor
        reload_one, routes_of = _RELOAD.fullmatch(path), _ROUTES.fullmatch(path)
        if method == "POST" and path == "/reload":
            return 200, {"bottles": [ack.as_dict() for ack in await self._listeners.refresh_all()]}
        if method == "POST" and reload_one:
            return await self._reload(reload_one[1])
        if method == "GET" and path == "/status":
            return 200, {**self._proxy.status(), "port": self._listeners.port}
        if method == "GET" and path == "/records":
            return 200, await self._records(query)
        if method == "GET" and routes_of:
            bottle = self._proxy.bottles.get(routes_of[1])
            return (
                (200, builtin_endpoints.allowlist(bottle))
                if bottle
                else (404, {"error": "There is no such bottle."})
            )
        return 404, {
            "error": "There is POST /reload[/slug], GET /status, /records and /bottles/<slug>/routes."
        }

    async def _reload(self, slug: str) -> tuple[int, Any]:
        config = self._proxy.config
        if config.owner(slug) != config.number:
            return 421, {"error": "Another process serves this bottle."}
        ack = await self._listeners.refresh(slug)
        if ack is None:
            return 404, Ack(slug, 0, None, "the bottle's files are gone").as_dict()
        return 200, ack.as_dict()

    async def _records(self, query: dict[str, list[str]]) -> Batch:
        try:
            number = int(query.get("after", ["0"])[0])
            wait = min(float(query.get("wait", ["0"])[0]), _MAX_WAIT)
        except ValueError as error:
            raise Refusal("bad-query", "after and wait are numbers.", 400) from error
        return await self._proxy.records.after(number, boot=query.get("boot", [""])[0], wait=wait)


def _response(status: int, answer: Any) -> bytes:
    body = answer.as_json() if isinstance(answer, Batch) else json.dumps(answer).encode("ascii")
    start = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: application/json\r\n"
    return f"{start}Content-Length: {len(body)}\r\n\r\n".encode("ascii") + body
