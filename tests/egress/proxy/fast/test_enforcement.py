"""Every request is parsed, decided and searched once, and only a route that the fast path knows takes it."""

from __future__ import annotations

import asyncio
import math
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from egress.policy.routes import Auth, Dlp, Lease, Route
from egress.policy.table import RouteTable, Snapshot
from egress.proxy.config import Config
from egress.proxy.fast.fast_path import FastPath
from egress.proxy.fast.write_batch import WriteBatch
from egress.proxy.net.connection import Connection
from egress.proxy.net.wakeup import Wakeup
from egress.proxy.process.worker import build_proxy
from egress.proxy.request import admission, inspection
from egress.proxy.request.client_session import ClientSession
from egress.proxy.request.session_hooks import Entry
from egress.proxy.state.proxy import Proxy
from egress.proxy.state.records import Record
from tests.support import ROOT
from tests.support.proxy_harness import get, nobody_listens
from tests.support.timeouts import PATIENCE

HOST = "api.example.com"
TOKEN = "ghp_" + "a1B2" * 9
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
PLAIN = Route(HOST, path_allowlist=("/x",), methods=("GET",), pinned_addresses=("127.0.0.1",))


@dataclass(frozen=True, slots=True)
class ToyRoute(Route):
    """A route with an attribute that the fast path has never heard of."""

    toy: str = ""


class CountedBatch(WriteBatch):
    count = 0

    def put(self, connection: Connection, data: bytes) -> None:
        self.count += 1
        super().put(connection, data)


class Scene:
    """A session inside TLS, without the TLS: the client's end and the origin's are sockets of the test."""

    def __init__(self, proxy: Proxy, batch: CountedBatch, client: socket.socket) -> None:
        self._proxy = proxy
        self._loop = asyncio.get_running_loop()
        self._client = client
        self._batch = batch
        self.origin: socket.socket | None = None

    @property
    def took_fast_path(self) -> bool:
        return self._batch.count > 0

    async def keep_connection(self) -> None:
        """To the origin, ready to be used."""
        near, self.origin = _pair()
        connection = await _connection(self._proxy, near)
        bottle = self._proxy.bottles["agent-a"]
        bottle.pool.return_connection(("https", HOST, PLAIN.pinned_addresses), connection)

    async def ask(self, message: bytes, *answers: bytes) -> bytes:
        """What comes back. The origin sends these, each when the one before has been read."""
        await self._loop.sock_sendall(self._client, message)
        if answers:
            assert self.origin is not None
            await self._loop.sock_recv(self.origin, 65536)
        for piece in answers:
            await self._loop.sock_sendall(self.origin, piece)
            await asyncio.sleep(0.05)
        return await self._loop.sock_recv(self._client, 65536)

    def records(self) -> list[Record]:
        return [record for kept in self._proxy.records._of_bottle.values() for _, record in kept]


def _pair() -> tuple[socket.socket, socket.socket]:
    near, far = socket.socketpair()
    far.setblocking(False)
    return near, far


async def _connection(proxy: Proxy, near: socket.socket) -> Connection:
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(lambda: Connection(Wakeup(), proxy.watch), sock=near)
    return connection


@asynccontextmanager
async def scene(home: Path, route: Route) -> AsyncIterator[Scene]:
    (home / "bottles" / "agent-a").mkdir(parents=True)
    with nobody_listens() as port:
        proxy = build_proxy(Config(home, pinned_ports={443: port}))
        bottle, _ = await proxy.bottles.load("agent-a")
        table = RouteTable((route,), (HOST,))
        bottle.snapshot = Snapshot("agent-a", 1, table, datetime.now(UTC).isoformat())
        bottle.search = replace(proxy.scanners.search(bottle), until=math.inf)
        near, client = _pair()
        batch = CountedBatch()
        session = ClientSession(
            proxy, await _connection(proxy, near), Entry.PROXY_SOCKET, bottle,
            inside=HOST, fast_paths=partial(FastPath, proxy, batch),
        )  # fmt: skip
        serving = asyncio.create_task(session.run())
        found = Scene(proxy, batch, client)
        try:
            async with asyncio.timeout(PATIENCE):
                yield found
                client.close()
                await serving
        finally:
            client.close()
            bottle.close()
            if found.origin is not None:
                found.origin.close()
            await asyncio.sleep(0.01)  # the loop closes its ends


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    counted: Counter[str] = Counter()

    def count(module: Any, name: str) -> None:
        real: Callable[..., Any] = getattr(module, name)

        def counting(*arguments: Any, **named: Any) -> Any:
            counted[name] += 1
            return real(*arguments, **named)

        monkeypatch.setattr(module, name, counting)

    count(admission, "parse_request")
    count(admission, "decide")
    count(inspection, "search_head")
    return counted


ONCE = {"parse_request": 1, "decide": 1, "search_head": 1}


async def test_the_first_request_on_a_connection_is_judged_once(tmp_path: Path, calls: Counter[str]) -> None:
    async with scene(tmp_path, PLAIN) as found:
        assert b"502" in (await found.ask(get("/x", HOST))).partition(b"\r\n")[0], "nobody listens there"
        assert (dict(calls), found.took_fast_path) == (ONCE, False)


@pytest.mark.parametrize("pieces", [(OK,), (OK[:-1], OK[-1:]), (OK[:10], OK[10:])])
async def test_a_request_on_the_fast_path_is_judged_once(
    tmp_path: Path, calls: Counter[str], pieces: tuple[bytes, ...]
) -> None:
    """Also when the task has to finish what the fast path began."""
    async with scene(tmp_path, PLAIN) as found:
        await found.keep_connection()
        assert await found.ask(get("/x", HOST), *pieces) == OK
        assert (dict(calls), found.took_fast_path) == (ONCE, True)
        assert [(one.path, one.status, one.bytes_in) for one in found.records()] == [("/x", 200, 2)]


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (get("/no", HOST), {"parse_request": 1, "decide": 1}),
        (get(f"/x?{TOKEN}", HOST), ONCE),
        (get("/x", "other.example.com"), {"parse_request": 1}),
        (b"GET /x HTTP/1.1\r\nBad\r\n\r\n", {"parse_request": 1}),
    ],
    ids=["path", "secret", "host", "malformed"],
)
async def test_a_refused_request_is_judged_once_and_leaves_nothing(
    tmp_path: Path, calls: Counter[str], message: bytes, expected: dict[str, int]
) -> None:
    async with scene(tmp_path, PLAIN) as found:
        await found.keep_connection()
        assert b"egress-refused" in await found.ask(message)
        assert (dict(calls), found.took_fast_path) == (expected, False)
    assert [(one.verdict, one.bytes_in) for one in found.records()] == [("refused", 0)]


@pytest.mark.parametrize(
    ("route", "is_taken"),
    [(ToyRoute(HOST, pinned_addresses=("127.0.0.1",)), True),
     (ToyRoute(HOST, pinned_addresses=("127.0.0.1",), toy="on"), False)],
    ids=["unset", "set"],
)  # fmt: skip
async def test_a_route_with_a_new_attribute_is_served_by_the_task(
    tmp_path: Path, route: Route, is_taken: bool
) -> None:
    async with scene(tmp_path, route) as found:
        await found.keep_connection()
        assert await found.ask(get("/x", HOST), OK) == OK
        assert found.took_fast_path is is_taken
        assert [(one.path, one.verdict, one.status) for one in found.records()] == [("/x", "allowed", 200)]


def test_the_folder_can_be_deleted() -> None:
    """Only the worker, which gives the fast path to the sessions, imports it."""
    proxy = ROOT / "egress" / "proxy"
    found = {path for path in proxy.rglob("*.py") if "egress.proxy.fast" in path.read_text()}
    outside = {path.relative_to(proxy).as_posix() for path in found if path.parent.name != "fast"}
    assert outside == {"process/worker.py"}


@pytest.mark.parametrize(
    ("more", "is_cacheable"),
    [
        ({}, True),
        ({"path_allowlist": ("/x",), "methods": ("GET",), "pinned_addresses": ("127.0.0.1",)}, True),
        ({"dlp": Dlp(out=True)}, True),
        ({"dlp": Dlp(out=False)}, True),
        ({"dlp": Dlp(incoming=True)}, False),
        ({"auth": Auth("Bearer", "TOKEN")}, False),
        ({"lease": Lease(max_uses=1)}, False),
    ],
)
def test_the_attributes_that_the_fast_path_is_right_for(more: dict[str, Any], is_cacheable: bool) -> None:
    assert Route(HOST, **more).is_cacheable is is_cacheable
