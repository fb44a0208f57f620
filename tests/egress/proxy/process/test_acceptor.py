"""Connections arrive where several processes listen: real sockets, and whose they claim to be."""

from __future__ import annotations

import asyncio
import base64
import errno
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop

from egress.contract import sharding
from egress.proxy.process import tcp
from egress.proxy.process.acceptor import SharedAcceptor
from egress.proxy.process.prefork import Sockets
from egress.proxy.request.session_hooks import PassToOwner
from tests.egress.proxy.process.test_socket_passing import Neighbour, fill, plane

NAMES = [f"agent-{letter}" for letter in "abcdefgh"]
OURS, THEIRS = (next(name for name in NAMES if sharding.owner(name, 2) == number) for number in (0, 1))


def head_of(slug: str) -> bytes:
    credentials = base64.b64encode(f"{slug}:token".encode())
    return b"CONNECT a.example.com:443 HTTP/1.1\r\nProxy-Authorization: Basic " + credentials + b"\r\n\r\n"


class Config:
    number = 0

    def owner(self, slug: str) -> int:
        return sharding.owner(slug, 2)


class Arrivals:
    """Process 0: `taken_in` is what it serves itself."""

    def __init__(self, sockets: Sockets, listening: Any) -> None:
        ours = plane(sockets)
        ours.config = Config()
        self.taken_in: asyncio.Queue[tuple[socket.socket, bytes, bool]] = asyncio.Queue()
        self.acceptor = SharedAcceptor(ours, listening, self._take_in)
        self.acceptor.open()

    def _take_in(self, accepted: socket.socket, seen: bytes, pass_to_owner: PassToOwner | None) -> None:
        self.taken_in.put_nowait((accepted, seen, pass_to_owner is None))


@asynccontextmanager
async def arrivals(wrap: Callable[[socket.socket], Any] = lambda listening: listening) -> AsyncIterator[Any]:
    sockets, (listening,) = Sockets([]), tcp.listen("127.0.0.1", 0, shared=True)
    sockets.add_pairs(2)
    here = Arrivals(sockets, wrap(listening))
    try:
        yield sockets, here, listening.getsockname()
    finally:
        here.acceptor.close()
        sockets.close()


def run(scene: Callable[[], Awaitable[None]]) -> None:
    async def within_reason() -> None:
        async with asyncio.timeout(60):
            await scene()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(within_reason())


async def say(address: Any, message: bytes) -> socket.socket:
    client = socket.create_connection(address)
    client.setblocking(False)
    await asyncio.get_running_loop().sock_sendall(client, message)
    return client


def close(*connections: socket.socket) -> None:
    for each in connections:
        each.close()


def test_what_is_a_neighbours_goes_there_and_is_not_taken_in() -> None:
    async def scene() -> None:
        async with arrivals() as (sockets, here, address):
            neighbour = Neighbour(sockets)
            client = await say(address, head_of(THEIRS) + b"early")
            connection, seen = await neighbour.got.get()
            assert seen == head_of(THEIRS) + b"early"
            assert here.taken_in.empty()
            connection.close()
            assert await asyncio.get_running_loop().sock_recv(client, 1) == b"", "nobody else holds it open"
            close(client)
            neighbour.reception.close()

    run(scene)


@pytest.mark.parametrize(
    ("message", "is_whole"),
    [
        (head_of(OURS), True),
        (b"GET http://a.example.com/ HTTP/1.1\r\n\r\n", True),
        (head_of("not a slug"), True),
        (head_of(THEIRS)[:-2], False),
        (b"GET / HTTP/1.1\r\n\r\n" + head_of(THEIRS), True),
        (head_of(THEIRS)[:-2] + head_of(THEIRS).partition(b"\r\n")[2], True),
    ],
    ids=["ours", "nobody's", "no slug", "not whole yet", "theirs behind the head", "says so twice"],
)
def test_what_is_not_surely_a_neighbours_is_taken_in_with_every_byte(message: bytes, is_whole: bool) -> None:
    """The owner is looked for again only when the head was not whole."""

    async def scene() -> None:
        async with arrivals() as (_, here, address):
            client = await say(address, message)
            connection, seen, is_decided = await here.taken_in.get()
            assert (seen, is_decided) == (message, is_whole)
            close(client, connection)

    run(scene)


def test_who_says_nothing_is_taken_in_too() -> None:
    async def scene() -> None:
        async with arrivals() as (_, here, address):
            client = socket.create_connection(address)
            connection, seen, is_decided = await here.taken_in.get()
            assert (seen, is_decided) == (b"", False)
            close(client, connection)

    run(scene)


def test_what_a_neighbour_has_no_room_for_is_taken_in_to_wait() -> None:
    async def scene() -> None:
        async with arrivals() as (sockets, here, address):
            assert fill(sockets)
            client = await say(address, head_of(THEIRS))
            connection, seen, is_decided = await here.taken_in.get()
            assert (seen, is_decided) == (head_of(THEIRS), False)
            close(client, connection)

    run(scene)


class WithoutRoom:
    """A listening socket in a process that has no descriptor left, twice."""

    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening
        self.failed = 0

    def accept(self) -> Any:
        if self.failed < 2:
            self.failed += 1
            raise OSError(errno.EMFILE, "Too many open files")
        return self._listening.accept()

    def fileno(self) -> int:
        return self._listening.fileno()

    def close(self) -> None:
        self._listening.close()


def test_a_connection_without_a_descriptor_waits_until_there_is_one(caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        async with arrivals(WithoutRoom) as (_, here, address):
            client = await say(address, head_of(OURS))
            connection, seen, is_decided = await here.taken_in.get()
            assert (seen, is_decided) == (head_of(OURS), True)
            close(client, connection)

    run(scene)
    assert [record.getMessage() for record in caplog.records] == [
        "no connection can be accepted: Too many open files"
    ] * 2
