"""The control socket: reload a bottle and get the ack, read the status, fetch records.

Trust boundary: a Unix socket (0600) of the operator's own user. Nothing here is reachable from a bottle.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from egress.contract.ack import Ack
from egress.proxy.errors import Gone, Refusal
from egress.proxy.http.heads import parse_request
from egress.proxy.http.reader import read_head
from egress.proxy.net.connection import Connection
from egress.proxy.net.wakeup import Wakeup
from egress.proxy.process.listeners import Listeners
from egress.proxy.process.unix import bind_unix
from egress.proxy.request import builtin_endpoints
from egress.proxy.state.bottle_files import SLUG
from egress.proxy.state.proxy import Proxy
from egress.proxy.state.records import Batch
from egress.proxy.state.status import bottle_status

log = logging.getLogger(__name__)
_MAX_WAIT = 30.0
_ANSWERED_TO_THE_END = ("/records", "/status")  # while the process stops: what it did has to be noted

# Given the slug in the path, or "", and the query.
Handler = Callable[[str, dict[str, list[str]]], Awaitable[tuple[int, Any]]]


class Control:
    def __init__(self, proxy: Proxy, listeners: Listeners) -> None:
        self._proxy = proxy
        self._listeners = listeners
        self._started_at = datetime.now(UTC).isoformat(timespec="seconds")
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._handlers: list[tuple[str, re.Pattern[str], Handler]] = [
            (method, re.compile(path.replace("<slug>", f"(?P<slug>{SLUG.pattern})")), handler)
            for method, path, handler in (
                ("POST", "/reload", self._reload_all),
                ("POST", "/reload/<slug>", self._reload),
                ("GET", "/status", self._status),
                ("GET", "/records", self._records),
                ("GET", "/bottles/<slug>/routes", self._routes),
            )
        ]

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
        if self._proxy.stopping and path not in _ANSWERED_TO_THE_END:
            raise Gone  # nothing becomes live any more, and what is live says nothing of our successor
        for expected, pattern, handler in self._handlers:
            if method == expected and (match := pattern.fullmatch(path)):
                return await handler(match.groupdict().get("slug", ""), query)
        return _error(404, "There is POST /reload[/slug], GET /status, /records and /bottles/<slug>/routes.")

    async def _reload_all(self, _: str, __: dict[str, list[str]]) -> tuple[int, Any]:
        return 200, {"bottles": [ack.as_dict() for ack in await self._listeners.refresh_all()]}

    async def _reload(self, slug: str, _: dict[str, list[str]]) -> tuple[int, Any]:
        config = self._proxy.config
        if config.owner(slug) != config.number:
            return _error(421, "Another process serves this bottle.")
        ack = await self._listeners.refresh(slug)
        if ack is None:
            return 404, Ack(slug, 0, None, "the bottle's files are gone").as_dict()
        return 200, ack.as_dict()

    async def _status(self, _: str, __: dict[str, list[str]]) -> tuple[int, Any]:
        proxy = self._proxy
        bottles = sorted(proxy.bottles.items())
        return 200, {
            "started_at": self._started_at,
            "stopping": proxy.stopping,
            "connections": len(proxy.watch),
            "strangers": len(proxy.unauthenticated),
            "bottles": {slug: bottle_status(bottle, proxy.secrets) for slug, bottle in bottles},
            "port": self._listeners.port,
        }

    async def _records(self, _: str, query: dict[str, list[str]]) -> tuple[int, Any]:
        try:
            number = int(query.get("after", ["0"])[0])
            wait = min(float(query.get("wait", ["0"])[0]), _MAX_WAIT)
        except ValueError as error:
            raise Refusal("bad-query", "after and wait are numbers.", 400) from error
        return 200, await self._proxy.records.after(number, boot=query.get("boot", [""])[0], wait=wait)

    async def _routes(self, slug: str, _: dict[str, list[str]]) -> tuple[int, Any]:
        bottle = self._proxy.bottles.get(slug)
        return (
            (200, builtin_endpoints.allowlist(bottle)) if bottle else _error(404, "There is no such bottle.")
        )


def _error(status: int, sentence: str) -> tuple[int, Any]:
    return status, {"error": sentence}


def _response(status: int, answer: Any) -> bytes:
    body = answer.as_json() if isinstance(answer, Batch) else json.dumps(answer).encode("ascii")
    start = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: application/json\r\n"
    return f"{start}Content-Length: {len(body)}\r\n\r\n".encode("ascii") + body
