"""Connections that one egress process accepted and another serves: the descriptor, and what was read of it.

Trust boundary: sockets without a name, made by the parent for its children alone. What is handed over is
still a stranger's: who it is is found out by the process that takes it, from the same bytes.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress

from .errors import Gone, Refusal
from .plane import DataPlane
from .wire import Wire

log = logging.getLogger(__name__)
_IN_MESSAGE = 16 * 1024  # what is more goes along as a file
_AT_ONCE = 64
_BETWEEN_TRIES = 0.01

Taken = Callable[[socket.socket, bytes], Awaitable[None]]


async def hand_over(plane: DataPlane, number: int, wire: Wire, seen: bytes) -> None:
    """Give the connection to process `number`, which begins with `seen`. Raises Refusal, or Gone.

    Few at a time wait in its queue, which it finds again after a restart; when that is full, we wait.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + plane.limits.connect_seconds
    while not _sent(plane.neighbours[number], wire, seen):
        if loop.time() > deadline:
            raise Refusal(
                "restarting", "The process that serves this bottle is being restarted. Try again.", 503
            )
        if wire.ended or plane.stopping:
            raise Gone
        await asyncio.sleep(_BETWEEN_TRIES)
    wire.abort()  # only our end of it: the other process has one too


def _sent(neighbour: socket.socket, wire: Wire, seen: bytes) -> bool:
    """All at once: what the kernel has got by now, and after it, is for the other one to read."""
    if wire.transport is None or wire.transport.is_closing():
        raise Gone
    descriptor = wire.transport.get_extra_info("socket").fileno()
    message = seen + bytes(wire.buffer)
    try:
        if len(message) <= _IN_MESSAGE:
            socket.send_fds(neighbour, [message], [descriptor])
        else:
            with os.fdopen(os.memfd_create("seen"), "wb", buffering=0) as file:
                file.write(message)
                socket.send_fds(neighbour, [b""], [descriptor, file.fileno()])
    except OSError:  # its queue is full, or we have no room for the file
        return False
    return True


class Reception:
    """Takes what the neighbours hand over."""

    def __init__(self, taken: Taken) -> None:
        self._taken = taken
        self._incoming: socket.socket | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def open(self, incoming: socket.socket) -> None:
        self._incoming = incoming
        asyncio.get_running_loop().add_reader(incoming, self._receive)

    def close(self) -> None:
        if self._incoming is not None:
            asyncio.get_running_loop().remove_reader(self._incoming)
            self._incoming.close()
            self._incoming = None

    def _receive(self) -> None:
        assert self._incoming is not None  # noqa: S101
        with suppress(BlockingIOError):
            for _ in range(_AT_ONCE):
                message, descriptors, _, _ = socket.recv_fds(
                    self._incoming, _IN_MESSAGE, 2, socket.MSG_CMSG_CLOEXEC
                )
                if descriptors:  # or this process has no room for any more
                    self._take(message, descriptors)

    def _take(self, message: bytes, descriptors: list[int]) -> None:
        connection = socket.socket(fileno=descriptors[0])
        for descriptor in descriptors[1:]:
            with os.fdopen(descriptor, "rb") as file:
                file.seek(0)
                message = file.read()
        task = asyncio.get_running_loop().create_task(self._serve(connection, message))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, connection: socket.socket, seen: bytes) -> None:
        try:
            await self._taken(connection, seen)
        except OSError as error:
            log.info("a connection was gone when it was handed over: %s", error.strerror)
            connection.close()
