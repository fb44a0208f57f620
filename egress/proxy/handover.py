"""Connections that one egress process accepted and another serves: the descriptor, and what was read of it.

Trust boundary: private Unix sockets (0600) between processes of the operator's own user. What is handed over
is still a stranger's: who it is is found out by the process that takes it, from the same bytes.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from egress import shards

from .errors import Gone, Refusal
from .plane import DataPlane
from .tcp import BACKLOG
from .unix import bind_unix, connect_unix
from .wire import Wire

log = logging.getLogger(__name__)
_LENGTH = 4  # bytes that say how many follow
_FIRST = 64 * 1024
_BETWEEN_TRIES = 0.05
_PATIENCE = 5.0  # for a neighbour that has connected and says nothing: it died

Taken = Callable[[socket.socket, bytes], Awaitable[None]]


async def hand_over(plane: DataPlane, number: int, wire: Wire, seen: bytes) -> None:
    """Give the connection to process `number`, which begins with `seen`. Raises Refusal, or Gone.

    A process that was killed is back in a moment, so it is waited for.
    """
    try:
        async with asyncio.timeout(plane.limits.connect_seconds):
            with await _reach(plane, number, wire) as neighbour:
                wire.lend()  # what is in the kernel now is for the other one to read
                await _give(neighbour, wire, seen + bytes(wire.buffer))
    except (OSError, TimeoutError) as error:
        wire.take_back()
        raise Refusal(
            "restarting", "The process that serves this bottle is being restarted. Try again.", 503
        ) from error
    wire.abort()  # only our end of it: the other process has one too


async def _reach(plane: DataPlane, number: int, wire: Wire) -> socket.socket:
    while not wire.ended and not plane.stopping:
        try:
            return connect_unix(shards.handover_socket(plane.config.run, number))
        except (BlockingIOError, FileNotFoundError, ConnectionRefusedError):  # busy, or not there yet
            await asyncio.sleep(_BETWEEN_TRIES)
    raise Gone


async def _give(neighbour: socket.socket, wire: Wire, seen: bytes) -> None:
    """Nobody waits in between as long as it fits into the socket's buffer, which is almost always."""
    if wire.transport is None or wire.transport.is_closing():
        raise Gone
    descriptor = wire.transport.get_extra_info("socket").fileno()
    message = len(seen).to_bytes(_LENGTH, "big") + seen
    sent = socket.send_fds(neighbour, [message], [descriptor])
    if sent < len(message):
        await asyncio.get_running_loop().sock_sendall(neighbour, message[sent:])


class Reception:
    """Takes what the neighbours hand over."""

    def __init__(self, taken: Taken) -> None:
        self._taken = taken
        self._listening: socket.socket | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def open(self, path: Path) -> None:
        self._listening = bind_unix(path, mode=0o600)
        self._listening.listen(BACKLOG)
        asyncio.get_running_loop().add_reader(self._listening, self._accept)

    def close(self) -> None:
        if self._listening is not None:
            asyncio.get_running_loop().remove_reader(self._listening)
            self._listening.close()
            self._listening = None

    def _accept(self) -> None:
        assert self._listening is not None  # noqa: S101
        with suppress(OSError):  # it is gone already
            neighbour, _ = self._listening.accept()
            neighbour.setblocking(False)
            task = asyncio.get_running_loop().create_task(self._take(neighbour))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _take(self, neighbour: socket.socket) -> None:
        connection: socket.socket | None = None
        try:
            async with asyncio.timeout(_PATIENCE):
                with neighbour:
                    first, connection = await _first_of(neighbour)
                    seen = await _rest_of(neighbour, first)
            await self._taken(connection, seen)
        except (OSError, TimeoutError) as error:
            log.warning("a connection was handed over only in part: %r", error)
            if connection is not None:
                connection.close()


async def _first_of(neighbour: socket.socket) -> tuple[bytes, socket.socket]:
    while True:
        try:
            first, descriptors, _, _ = socket.recv_fds(neighbour, _LENGTH + _FIRST, 1)
        except BlockingIOError:
            await _readable(neighbour)
            continue
        if not descriptors:
            raise ConnectionError("no descriptor came")
        return first, socket.socket(fileno=descriptors[0])


async def _rest_of(neighbour: socket.socket, first: bytes) -> bytes:
    received, loop = bytearray(first), asyncio.get_running_loop()
    while len(received) < _LENGTH or len(received) < _LENGTH + int.from_bytes(received[:_LENGTH], "big"):
        more = await loop.sock_recv(neighbour, _FIRST)
        if not more:
            raise ConnectionError("the rest did not come")
        received += more
    return bytes(received[_LENGTH:])


async def _readable(waiting: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(waiting, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(waiting)
