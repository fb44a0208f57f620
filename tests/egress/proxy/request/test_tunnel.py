"""Bulk transfers through a tunnel: the same bytes, the same ends, nothing left open."""

from __future__ import annotations

import asyncio
import random
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import uvloop

from egress.policy.decide import Request
from egress.policy.routes import Route
from egress.proxy.config import Limits
from egress.proxy.net.connection import Connection
from egress.proxy.net.deadline_timer import DeadlineTimer
from egress.proxy.net.wakeup import Wakeup
from egress.proxy.request.tunnel import Tunnel
from egress.proxy.state.records import Record, blank_record
from tests.support.timeouts import PATIENCE

MEGABYTE = 1024 * 1024


def bulk(size: int, seed: int) -> bytes:
    return random.Random(seed).randbytes(size)


class Ends:
    """A tunnel between two real sockets, whose other ends are the test's."""

    def __init__(self, client: socket.socket, origin: socket.socket, tunnel: Tunnel, record: Record) -> None:
        self.client = client
        self.origin = origin
        self.tunnel = tunnel
        self.record = record
        self.done = asyncio.ensure_future(tunnel.run())


def pair(kind: str) -> tuple[socket.socket, socket.socket]:
    if kind == "unix":
        ours, theirs = socket.socketpair()
    else:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            ours = socket.create_connection(listening.getsockname())
            theirs, _ = listening.accept()
    for end in (ours, theirs):
        end.setblocking(False)
    return ours, theirs


async def open_tunnel(kind: str) -> Ends:
    loop, watch, bell = asyncio.get_running_loop(), DeadlineTimer(), Wakeup()
    (client, near_client), (origin, near_origin) = pair(kind), pair("tcp")
    wires = []
    for near in (near_client, near_origin):
        _, wire = await loop.create_connection(lambda: Connection(bell, watch), sock=near)
        wires.append(wire)
    record = blank_record("agent-a")
    request = Request("https", "bare.example.com", 443, "CONNECT", "/")
    route = Route("bare.example.com")
    tunnel = Tunnel(*wires, Limits(), record, request=request, route=route)
    return Ends(client, origin, tunnel, record)


async def send(end: socket.socket, data: bytes, *, finish: bool = True) -> None:
    await asyncio.get_running_loop().sock_sendall(end, data)
    if finish:
        end.shutdown(socket.SHUT_WR)


async def everything(end: socket.socket) -> bytes:
    received = bytearray()
    while data := await asyncio.get_running_loop().sock_recv(end, 65536):
        received += data
    return bytes(received)


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE):
            await scenario()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(bounded())


@contextmanager
def nothing_left_open() -> Iterator[None]:
    uvloop.new_event_loop().close()  # the first one opens what all share
    before = open_files()
    yield
    assert not open_files() - before  # what earlier tests of this process had open may go meanwhile


def open_files() -> Counter[str]:
    """How many of each kind."""
    links = list(Path("/proc/self/fd").iterdir())
    return Counter(str(link.readlink()).partition(":[")[0] for link in links if link.is_symlink())


@pytest.mark.parametrize("kind", ["unix", "tcp"])
def test_both_directions_arrive_whole(kind: str) -> None:
    down, up = bulk(8 * MEGABYTE, 1), bulk(6 * MEGABYTE, 2)

    async def scenario() -> None:
        ends = await open_tunnel(kind)
        _, _, got_down, got_up = await asyncio.gather(
            send(ends.origin, down), send(ends.client, up), everything(ends.client), everything(ends.origin)
        )
        await ends.done
        assert got_down == down and got_up == up
        assert (ends.record.bytes_in, ends.record.bytes_out) == (len(down), len(up))
        ends.client.close(), ends.origin.close()

    with nothing_left_open():
        run(scenario)


def test_who_does_not_read_stops_who_sends() -> None:
    data = bulk(64 * MEGABYTE, 3)

    async def scenario() -> None:
        ends = await open_tunnel("tcp")
        sending = asyncio.ensure_future(send(ends.origin, data))
        seen = -1
        while ends.record.bytes_in != seen:  # that nothing moves any more shows only after a moment
            seen = ends.record.bytes_in
            await asyncio.sleep(0.3)
        assert not sending.done() and seen < len(data) // 2
        assert await everything(ends.client) == data
        ends.client.close()
        await ends.done
        ends.origin.close()

    with nothing_left_open():
        run(scenario)


def test_the_other_direction_goes_on_after_the_end_of_a_bulk_transfer() -> None:
    upload = bulk(4 * MEGABYTE, 4)

    async def scenario() -> None:
        ends = await open_tunnel("unix")
        _, received = await asyncio.gather(send(ends.client, upload), everything(ends.origin))
        assert received == upload
        await send(ends.origin, b"got all of it")
        assert await everything(ends.client) == b"got all of it"
        await ends.done
        ends.client.close(), ends.origin.close()

    with nothing_left_open():
        run(scenario)


def test_a_cut_ends_it_at_once() -> None:
    async def scenario() -> None:
        ends = await open_tunnel("tcp")
        sending = asyncio.ensure_future(send(ends.origin, bulk(64 * MEGABYTE, 5)))
        await asyncio.get_running_loop().sock_recv(ends.client, 65536)
        ends.tunnel.cut()
        await ends.done
        with pytest.raises(ConnectionError):
            await sending
        ends.client.close(), ends.origin.close()

    with nothing_left_open():
        run(scenario)


@pytest.mark.parametrize("gone", ["client", "origin"])
def test_who_goes_away_in_the_middle_ends_it(gone: str) -> None:
    async def scenario() -> None:
        ends = await open_tunnel("tcp")
        sending = asyncio.ensure_future(send(ends.origin, bulk(64 * MEGABYTE, 6)))
        for _ in range(20):
            await asyncio.get_running_loop().sock_recv(ends.client, 65536)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        getattr(ends, gone).close()
        if gone == "origin":  # what it sent before still arrives, and then the end
            await everything(ends.client)
            ends.client.close()
        await ends.done
        ends.client.close(), ends.origin.close()

    with nothing_left_open():
        run(scenario)
