"""What a bottle's connections keep in memory for each other, all of them together."""

from __future__ import annotations

import asyncio
import ctypes
import mmap
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egress.proxy.config import Limits, from_environment
from egress.proxy.net.buffers import NARROW, WIDE, BufferBudget, BufferLimits, shared_room
from egress.proxy.net.connection import Connection, DeadlineTimer, Wakeup

CONNECTIONS = 20
ROOM = CONNECTIONS * NARROW.most + 5 * WIDE.most


@given(st.lists(st.integers(0, CONNECTIONS), max_size=200))
def test_no_more_is_given_out_than_there_is(comings_and_goings: list[int]) -> None:
    berths, taken = BufferBudget(ROOM, CONNECTIONS), list[BufferLimits]()
    for which in comings_and_goings:
        if which < len(taken):
            berths.give_back(taken.pop(which))
        elif len(taken) < CONNECTIONS:
            taken.append(berths.take())
        assert sum(buffer_limits.most for buffer_limits in taken) <= ROOM


def test_few_connections_have_all_the_room_they_can_use() -> None:
    berths = BufferBudget(ROOM, CONNECTIONS)
    assert [berths.take() for _ in range(5)] == [WIDE] * 5


def test_who_leaves_makes_room_for_who_comes() -> None:
    berths = BufferBudget(ROOM, CONNECTIONS)
    taken = [berths.take() for _ in range(CONNECTIONS)]
    assert berths.take() is NARROW
    berths.give_back(taken[0])
    assert berths.take() is WIDE


def test_a_whole_head_fits_into_the_smallest() -> None:
    assert NARROW.unread >= Limits().head_bytes


def test_shared_rooms_begin_far_from_where_pages_and_large_blocks_do() -> None:
    for size in (1, 16 * 1024, WIDE.read):
        room = shared_room(size)
        assert len(room) == size
        start = ctypes.addressof(ctypes.c_char.from_buffer(room))
        assert start % mmap.PAGESIZE == mmap.PAGESIZE // 2


def test_more_connections_get_more_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EGRESS_MAX_CONNECTIONS", "5000")
    assert from_environment().limits.in_flight_bytes >= 5000 * NARROW.most


async def pair(buffer_limits: BufferLimits) -> tuple[Connection, socket.socket]:
    near, far = socket.socketpair()
    far.setblocking(False)
    wire = Connection(Wakeup(), DeadlineTimer(), buffer_limits=buffer_limits)
    await asyncio.get_running_loop().create_connection(lambda: wire, sock=near)
    return wire, far


@pytest.mark.parametrize("buffer_limits", [NARROW, WIDE])
async def test_a_wire_reads_no_more_than_its_room(buffer_limits: BufferLimits) -> None:
    wire, far = await pair(buffer_limits)
    with far:
        sending = asyncio.create_task(asyncio.get_running_loop().sock_sendall(far, bytes(4 * WIDE.unread)))
        while len(wire.buffer) <= buffer_limits.unread:
            await asyncio.sleep(0)
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(wire.buffer) <= buffer_limits.unread + buffer_limits.read
        sending.cancel()
        wire.abort()


@pytest.mark.parametrize("buffer_limits", [NARROW, WIDE])
async def test_what_is_written_here_is_not_read_any_more_when_the_room_is_full(
    buffer_limits: BufferLimits,
) -> None:
    wire, far = await pair(buffer_limits)
    source, other = await pair(buffer_limits)
    wire.feed_from(source)
    with far, other:
        while not wire.choked:
            wire.write(bytes(1024))
        assert wire.transport is not None
        assert wire.transport.get_write_buffer_size() <= buffer_limits.unsent + 1024
        assert source.transport is not None and not source.transport.is_reading()
        wire.abort()
        source.abort()


async def test_what_nobody_reads_after_a_close_is_not_kept_for_ever() -> None:
    wire, far = await pair(WIDE)
    with far:
        wire.write(bytes(8 * WIDE.unsent))
        wire.close()
        assert wire.leaving and not wire.closed
        wire.expire()  # as the watch does, in time
        await asyncio.sleep(0.01)
        assert wire.closed and not wire.leaving


async def test_what_is_read_after_a_close_arrives() -> None:
    wire, far = await pair(WIDE)
    message = bytes(8 * WIDE.unsent)
    with far:
        wire.write(message)
        wire.close()
        received = 0
        while data := await asyncio.get_running_loop().sock_recv(far, 1 << 20):
            received += len(data)
        assert received == len(message)
        assert wire.closed and not wire.leaving
