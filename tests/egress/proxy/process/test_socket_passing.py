"""A connection changes hands between two ends of this process: real sockets, the proxy's own wires."""

from __future__ import annotations

import asyncio
import base64
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvloop

from egress.contract import sharding
from egress.proxy.config import Config, Limits
from egress.proxy.errors import Gone, Refusal
from egress.proxy.net.connection import Connection
from egress.proxy.net.deadline_timer import DeadlineTimer
from egress.proxy.net.wakeup import Wakeup
from egress.proxy.process.prefork import Sockets
from egress.proxy.process.socket_passing import SocketReceiver, pass_to_owner
from tests.support.timeouts import PATIENCE

NAMES = [f"agent-{letter}" for letter in "abcdefgh"]
OURS, THEIRS = (next(name for name in NAMES if sharding.owner(name, 2) == number) for number in (0, 1))


def head_of(slug: str) -> bytes:
    credentials = base64.b64encode(f"{slug}:token".encode())
    return b"CONNECT a.example.com:443 HTTP/1.1\r\nProxy-Authorization: Basic " + credentials + b"\r\n\r\n"


HEAD = head_of(THEIRS)
Scene = Callable[[Sockets], Awaitable[None]]


@pytest.fixture
def play() -> Iterator[Callable[[Scene], None]]:
    """On the event loop that the proxy runs on, with the sockets of two processes; nothing stays open."""

    def play(scene: Scene) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            sockets = Sockets([])
            sockets.add_pairs(2)
            runner.run(scene(sockets))
            sockets.close()

    play(_nothing)  # the loop's library keeps a few of its own from now on
    before = open_descriptors()
    yield play
    assert open_descriptors() == before


async def _nothing(_: Sockets) -> None:
    pass


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def plane(sockets: Sockets, *, patience: float = 10) -> Any:
    limits = Limits(connect_seconds=patience)
    config = Config(Path("/nowhere"), processes=2)
    return SimpleNamespace(config=config, neighbours=sockets.neighbours, limits=limits, stopping=False)


@asynccontextmanager
async def accepted() -> AsyncIterator[tuple[socket.socket, Connection]]:
    """A client, and our end of its connection."""
    loop, arrived = asyncio.get_running_loop(), asyncio.Event()
    wires: list[Connection] = []

    def opened(wire: Connection) -> None:
        wires.append(wire)
        arrived.set()

    server = await loop.create_server(lambda: Connection(Wakeup(), DeadlineTimer(), opened), "127.0.0.1", 0)
    client = socket.create_connection(server.sockets[0].getsockname())
    client.setblocking(False)
    await arrived.wait()
    try:
        yield client, wires[0]
    finally:
        client.close()
        wires[0].abort()
        server.close()


class Neighbour:
    """Process 1, which keeps what it gets."""

    def __init__(self, sockets: Sockets) -> None:
        self.got: asyncio.Queue[tuple[socket.socket, bytes]] = asyncio.Queue()
        self.reception = SocketReceiver(self._take)
        self.reception.open(sockets.incoming[1].dup())

    def _take(self, connection: socket.socket, seen: bytes) -> None:
        self.got.put_nowait((connection, seen))


@pytest.mark.parametrize("waiting", [b"", b"x", b"y" * 700_000], ids=["nothing", "a byte", "very much"])
def test_the_neighbour_gets_the_connection_and_every_byte_of_it(play: Any, waiting: bytes) -> None:
    async def scene(sockets: Sockets) -> None:
        loop, neighbour = asyncio.get_running_loop(), Neighbour(sockets)
        async with accepted() as (client, wire):
            wire.buffer += waiting
            await pass_to_owner(plane(sockets), wire, HEAD)
            connection, seen = await neighbour.got.get()
            assert seen == HEAD + waiting
            connection.setblocking(False)
            await loop.sock_sendall(client, b"later")
            assert await loop.sock_recv(connection, 100) == b"later"
            await loop.sock_sendall(connection, b"answer")
            assert await loop.sock_recv(client, 100) == b"answer", "letting go of it closed nothing"
            connection.close()
            assert await loop.sock_recv(client, 100) == b"", "and nobody else holds it open"
        neighbour.reception.close()

    play(scene)


@pytest.mark.parametrize(
    "head",
    [
        head_of(OURS),
        b"GET http://a.example.com/ HTTP/1.1\r\n\r\n",
        head_of("not a slug"),
        head_of(THEIRS)[:-2] + head_of(THEIRS).partition(b"\r\n")[2],
    ],
    ids=["ours", "nobody's", "no slug", "says so twice"],
)
def test_what_is_not_surely_a_neighbours_stays_here(play: Any, head: bytes) -> None:
    async def scene(sockets: Sockets) -> None:
        async with accepted() as (client, wire):
            assert not await pass_to_owner(plane(sockets), wire, head)
            wire.write(b"answer")
            assert await asyncio.get_running_loop().sock_recv(client, 100) == b"answer"

    play(scene)


def test_a_neighbour_that_is_just_being_restarted_finds_it_afterwards(play: Any) -> None:
    async def scene(sockets: Sockets) -> None:
        async with accepted() as (_, wire):
            await pass_to_owner(plane(sockets), wire, HEAD)
            neighbour = Neighbour(sockets)
            connection, seen = await neighbour.got.get()
            assert seen == HEAD
            connection.close()
            neighbour.reception.close()

    play(scene)


def fill(sockets: Sockets) -> int:
    """So many messages wait for process 1 that there is no room for any more."""
    count = 0
    with suppress(BlockingIOError):
        while True:
            sockets.neighbours[1].send(b"not a connection")
            count += 1
    return count


class Crowded:
    """The way to process 1, whose queue is full: counts who was turned away."""

    def __init__(self, sockets: Sockets) -> None:
        assert fill(sockets)
        self._way = sockets.neighbours[1]
        self.turned_away = 0

    def sendmsg(self, *message: Any) -> int:
        try:
            return self._way.sendmsg(*message)
        except BlockingIOError:
            self.turned_away += 1
            raise

    async def is_tried_again(self) -> None:
        while self.turned_away < 3:
            await asyncio.sleep(0.001)


def test_a_neighbour_with_a_full_queue_is_waited_for(play: Any) -> None:
    async def scene(sockets: Sockets) -> None:
        async with accepted() as (_, wire):
            ours, crowded = plane(sockets), Crowded(sockets)
            ours.neighbours = {1: crowded}
            handing = asyncio.create_task(pass_to_owner(ours, wire, HEAD))
            await asyncio.wait_for(crowded.is_tried_again(), PATIENCE)
            assert not handing.done()
            neighbour = Neighbour(sockets)
            await handing
            connection, seen = await neighbour.got.get()
            assert seen == HEAD
            connection.close()
            neighbour.reception.close()

    play(scene)


def test_a_neighbour_that_takes_nothing_is_told_to_the_client(play: Any) -> None:
    async def scene(sockets: Sockets) -> None:
        loop = asyncio.get_running_loop()
        async with accepted() as (client, wire):
            fill(sockets)
            with pytest.raises(Refusal) as refused:
                await pass_to_owner(plane(sockets, patience=0.1), wire, HEAD)
            assert (refused.value.reason, refused.value.status) == ("restarting", 503)
            wire.write(b"sorry")
            assert await loop.sock_recv(client, 100) == b"sorry"
            await loop.sock_sendall(client, b"more")
            await wire.bell.wait()
            assert wire.buffer == b"more", "it is still read from"

    play(scene)


@pytest.mark.parametrize("why", ["the client left", "we stop"])
def test_nobody_waits_for_a_neighbour_in_vain(play: Any, why: str) -> None:
    async def scene(sockets: Sockets) -> None:
        async with accepted() as (client, wire):
            ours, crowded = plane(sockets), Crowded(sockets)
            ours.neighbours = {1: crowded}
            handing = asyncio.create_task(pass_to_owner(ours, wire, HEAD))
            await asyncio.wait_for(crowded.is_tried_again(), PATIENCE)
            if why == "we stop":
                ours.stopping = True
            else:
                client.close()
            with pytest.raises(Gone):
                await asyncio.wait_for(handing, PATIENCE)

    play(scene)
