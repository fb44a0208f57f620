"""Connections that one egress process accepted and another serves: the descriptor, and what was read of it.

Trust boundary: sockets without a name, made by the parent for its children alone. What is handed over is
still a stranger's: who it is is found out by the process that takes it, from the same bytes.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from contextlib import suppress

from egress.proxy.config import Config
from egress.proxy.errors import Gone, Refusal
from egress.proxy.http.proxy_auth import claimed_slug
from egress.proxy.net.connection import Connection
from egress.proxy.state.bottle_files import SLUG
from egress.proxy.state.proxy import Proxy

IN_MESSAGE = 16 * 1024  # what is more goes along as a file
_AT_ONCE = 64
_BETWEEN_TRIES = 0.01

TakeIn = Callable[[socket.socket, bytes], None]


def owner_of(config: Config, head: bytes) -> int:
    """The process that serves whom a head, which nobody has read yet, claims to be. Ours, if nobody."""
    slug = claimed_slug(head)
    return config.owner(slug) if SLUG.fullmatch(slug) else config.number


def try_pass(neighbour: socket.socket, descriptor: int, seen: bytes) -> bool:
    """Give the connection to whoever reads there, to begin with `seen`. Only our end of it is left to close.

    False when it has to wait: few at a time do in that queue, which a process finds again after a restart.
    """
    try:
        if len(seen) <= IN_MESSAGE:
            socket.send_fds(neighbour, [seen], [descriptor])
        else:
            with os.fdopen(os.memfd_create("seen"), "wb", buffering=0) as file:
                file.write(seen)
                socket.send_fds(neighbour, [b""], [descriptor, file.fileno()])
    except OSError:  # its queue is full, or we have no room for the file
        return False
    return True


async def pass_socket(proxy: Proxy, number: int, connection: Connection, seen: bytes) -> None:
    """The same for a wire's connection, waiting while it has to. Raises Refusal, or Gone."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + proxy.limits.connect_seconds
    while not _sent(proxy.neighbours[number], connection, seen):
        if loop.time() > deadline:
            raise Refusal(
                "restarting", "The process that serves this bottle is being restarted. Try again.", 503
            )
        if connection.ended or proxy.stopping:
            raise Gone
        await asyncio.sleep(_BETWEEN_TRIES)
    connection.abort()  # only our end of it: the other process has one too


def _sent(neighbour: socket.socket, connection: Connection, seen: bytes) -> bool:
    """All at once: what the kernel has got by now, and after it, is for the other one to read."""
    if connection.transport is None or connection.transport.is_closing():
        raise Gone
    descriptor = connection.transport.get_extra_info("socket").fileno()
    return try_pass(neighbour, descriptor, seen + bytes(connection.buffer))


class SocketReceiver:
    """Takes what the neighbours hand over."""

    def __init__(self, take_in: TakeIn) -> None:
        self._take_in = take_in
        self._incoming: socket.socket | None = None

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
                    self._incoming, IN_MESSAGE, 2, socket.MSG_CMSG_CLOEXEC
                )
                if descriptors:  # or this process has no room for any more
                    self._take(message, descriptors)

    def _take(self, message: bytes, descriptors: list[int]) -> None:
        connection = socket.socket(fileno=descriptors[0])
        for descriptor in descriptors[1:]:
            with os.fdopen(descriptor, "rb") as file:
                file.seek(0)
                message = file.read()
        self._take_in(connection, message)
