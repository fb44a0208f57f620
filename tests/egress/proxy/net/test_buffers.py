"""What a connection keeps in memory while it waits."""

from __future__ import annotations

import asyncio
import socket

from egress.proxy.config import Limits
from egress.proxy.net.buffers import READ_BYTES, UNREAD_BYTES, UNSENT_BYTES
from egress.proxy.net.connection import Connection
from egress.proxy.net.deadline_timer import DeadlineTimer
from egress.proxy.net.wakeup import Wakeup


def test_a_whole_head_fits() -> None:
    assert Limits().head_bytes <= UNREAD_BYTES


async def pair() -> tuple[Connection, socket.socket]:
    near, far = socket.socketpair()
    far.setblocking(False)
    wire = Connection(Wakeup(), DeadlineTimer())
    await asyncio.get_running_loop().create_connection(lambda: wire, sock=near)
    return wire, far


async def test_a_connection_reads_no_more_than_it_may_keep() -> None:
    wire, far = await pair()
    with far:
        sending = asyncio.create_task(asyncio.get_running_loop().sock_sendall(far, bytes(16 * UNREAD_BYTES)))
        while len(wire.buffer) <= UNREAD_BYTES:
            await asyncio.sleep(0)
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(wire.buffer) <= UNREAD_BYTES + READ_BYTES
        sending.cancel()
        wire.abort()


async def test_what_is_written_here_is_not_read_any_more_when_the_room_is_full() -> None:
    wire, far = await pair()
    source, other = await pair()
    wire.feed_from(source)
    with far, other:
        while not wire.choked:
            wire.write(bytes(1024))
        assert wire.transport is not None
        assert wire.transport.get_write_buffer_size() <= UNSENT_BYTES + 1024
        assert source.transport is not None and not source.transport.is_reading()
        wire.abort()
        source.abort()


async def test_what_nobody_reads_after_a_close_is_not_kept_for_ever() -> None:
    wire, far = await pair()
    with far:
        wire.write(bytes(64 * UNSENT_BYTES))
        wire.close()
        assert wire.leaving and not wire.closed
        wire.expire()  # as the watch does, in time
        await asyncio.sleep(0.01)
        assert wire.closed and not wire.leaving


async def test_what_is_read_after_a_close_arrives() -> None:
    wire, far = await pair()
    message = bytes(64 * UNSENT_BYTES)
    with far:
        wire.write(message)
        wire.close()
        received = 0
        while data := await asyncio.get_running_loop().sock_recv(far, 1 << 20):
            received += len(data)
        assert received == len(message)
        assert wire.closed and not wire.leaving
