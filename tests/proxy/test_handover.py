"""A connection changes hands between two ends of this process: real sockets, the proxy's own wires."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pytest
import uvloop

from egress import shards
from egress.proxy import handover
from egress.proxy.config import Limits
from egress.proxy.errors import Gone, Refusal
from egress.proxy.handover import Reception, hand_over
from egress.proxy.wire import Doorbell, Watch, Wire

Scene = Callable[[Path], Awaitable[None]]


def play(scene: Scene) -> None:
    """On the event loop that the proxy runs on; the directory's name is short, as a socket's must be."""
    with (
        TemporaryDirectory(prefix="b-") as run,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        runner.run(scene(Path(run)))


def plane(run: Path, *, patience: float = 10, stopping: bool = False) -> Any:
    limits = Limits(connect_seconds=patience)
    return SimpleNamespace(config=SimpleNamespace(run=run), limits=limits, stopping=stopping)


@asynccontextmanager
async def accepted() -> AsyncIterator[tuple[socket.socket, Wire]]:
    """A client, and our end of its connection."""
    loop, arrived = asyncio.get_running_loop(), asyncio.Event()
    wires: list[Wire] = []

    def opened(wire: Wire) -> None:
        wires.append(wire)
        arrived.set()

    server = await loop.create_server(lambda: Wire(Doorbell(), Watch(), opened), "127.0.0.1", 0)
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
    def __init__(self) -> None:
        self.got: asyncio.Queue[tuple[socket.socket, bytes]] = asyncio.Queue()
        self.reception = Reception(self._take)

    async def _take(self, connection: socket.socket, seen: bytes) -> None:
        await self.got.put((connection, seen))


@pytest.mark.parametrize("waiting", [b"", b"x", b"y" * 700_000], ids=["nothing", "a byte", "very much"])
def test_the_neighbour_gets_the_connection_and_every_byte_of_it(waiting: bytes) -> None:
    async def scene(run: Path) -> None:
        loop, neighbour = asyncio.get_running_loop(), Neighbour()
        neighbour.reception.open(shards.handover_socket(run, 1))
        async with accepted() as (client, wire):
            wire.buffer += waiting
            await hand_over(plane(run), 1, wire, b"HEAD")
            connection, seen = await neighbour.got.get()
            assert seen == b"HEAD" + waiting
            connection.setblocking(False)
            await loop.sock_sendall(client, b"later")
            assert await loop.sock_recv(connection, 100) == b"later"
            await loop.sock_sendall(connection, b"answer")
            assert await loop.sock_recv(client, 100) == b"answer", "letting go of it closed nothing"
            connection.close()
            assert await loop.sock_recv(client, 100) == b"", "and nobody else holds it open"
        neighbour.reception.close()

    play(scene)


def test_its_door_is_for_the_operators_user_alone() -> None:
    async def scene(run: Path) -> None:
        neighbour = Neighbour()
        neighbour.reception.open(shards.handover_socket(run, 1))
        assert shards.handover_socket(run, 1).stat().st_mode & 0o777 == 0o600
        neighbour.reception.close()

    play(scene)


def test_a_neighbour_that_is_just_being_restarted_is_waited_for() -> None:
    async def scene(run: Path) -> None:
        neighbour = Neighbour()
        async with accepted() as (_, wire):
            handing = asyncio.create_task(hand_over(plane(run), 1, wire, b"HEAD"))
            await asyncio.sleep(0.2)
            assert not handing.done()
            neighbour.reception.open(shards.handover_socket(run, 1))
            await handing
            connection, seen = await neighbour.got.get()
            assert seen == b"HEAD"
            connection.close()
        neighbour.reception.close()

    play(scene)


def test_a_neighbour_that_stays_away_is_told_to_the_client() -> None:
    async def scene(run: Path) -> None:
        loop = asyncio.get_running_loop()
        async with accepted() as (client, wire):
            with pytest.raises(Refusal) as refused:
                await hand_over(plane(run, patience=0.1), 1, wire, b"HEAD")
            assert (refused.value.reason, refused.value.status) == ("restarting", 503)
            wire.write(b"sorry")
            assert await loop.sock_recv(client, 100) == b"sorry"
            await loop.sock_sendall(client, b"more")
            await wire.bell.wait()
            assert wire.buffer == b"more", "it is read from again"

    play(scene)


@pytest.mark.parametrize("why", ["the client left", "we stop"])
def test_nobody_waits_for_a_neighbour_in_vain(why: str) -> None:
    async def scene(run: Path) -> None:
        async with accepted() as (client, wire):
            ours = plane(run)
            handing = asyncio.create_task(hand_over(ours, 1, wire, b"HEAD"))
            await asyncio.sleep(0.1)
            if why == "we stop":
                ours.stopping = True
            else:
                client.close()
            with pytest.raises(Gone):
                await asyncio.wait_for(handing, 5)

    play(scene)


@pytest.mark.parametrize(
    "sent", [b"", b"\0\0", b"\0\0\0\x05abc"], ids=["nothing", "half a length", "half of it"]
)
def test_what_was_handed_over_only_in_part_is_let_go(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The neighbour died in the middle of it."""
    monkeypatch.setattr(handover, "_PATIENCE", 0.2)

    async def scene(run: Path) -> None:
        loop, neighbour = asyncio.get_running_loop(), Neighbour()
        neighbour.reception.open(shards.handover_socket(run, 1))
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with socket.socket(socket.AF_UNIX) as dying:
            dying.connect(str(shards.handover_socket(run, 1)))
            if sent:
                socket.send_fds(dying, [sent], [theirs.fileno()])
            theirs.close()
        assert await asyncio.wait_for(loop.sock_recv(ours, 1), 5) == b""
        assert neighbour.got.empty()
        neighbour.reception.close()
        ours.close()

    before = len(list(Path("/proc/self/fd").iterdir()))
    play(scene)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
