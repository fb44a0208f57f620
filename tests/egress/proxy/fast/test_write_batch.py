"""What waits to be written together leaves in order, whatever else is done with its wire."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from egress.proxy.fast.write_batch import WriteBatch
from egress.proxy.net.connection import Connection
from egress.proxy.net.deadline_timer import DeadlineTimer
from egress.proxy.net.wakeup import Wakeup


class Ends:
    """A wire, and what arrives at its other end."""

    def __init__(self, wire: Connection, far: socket.socket) -> None:
        self.wire = wire
        self._far = far

    def arrived(self) -> bytes:
        try:
            return self._far.recv(1000)
        except BlockingIOError:
            return b"nothing"


@asynccontextmanager
async def ends() -> AsyncIterator[Ends]:
    near, far = socket.socketpair()
    far.setblocking(False)
    loop = asyncio.get_running_loop()
    _, wire = await loop.create_connection(lambda: Connection(Wakeup(), DeadlineTimer()), sock=near)
    with far:
        yield Ends(wire, far)
        wire.abort()
        await asyncio.sleep(0)


async def test_messages_leave_together_when_the_loop_has_gone_round() -> None:
    outbox = WriteBatch()
    async with ends() as one, ends() as two:
        outbox.put(one.wire, b"a")
        outbox.put(two.wire, b"b")
        outbox.put(one.wire, b"c")
        assert [one.arrived(), two.arrived()] == [b"nothing", b"nothing"]
        await asyncio.sleep(0)
        assert [one.arrived(), two.arrived()] == [b"ac", b"b"]
        outbox.put(one.wire, b"d")
        await asyncio.sleep(0)
        assert one.arrived() == b"d"


async def test_what_is_written_meanwhile_comes_after_it() -> None:
    outbox = WriteBatch()
    async with ends() as one:
        outbox.put(one.wire, b"first,")
        one.wire.write(b"second,")
        assert one.arrived() == b"first,second,"
        await asyncio.sleep(0)
        assert one.arrived() == b"nothing"


async def test_it_leaves_before_its_wire_is_closed() -> None:
    outbox = WriteBatch()
    async with ends() as one:
        outbox.put(one.wire, b"last words")
        one.wire.close()
        await asyncio.sleep(0)
        assert one.arrived() == b"last words"
