"""Connections that one egress process accepted and another serves: the descriptor, and what was read of it.

The owner is read from the first head, once. Later the bottle is known, and a request in the name of another
one is refused.

Trust boundary: sockets without a name, made by the parent for its children alone. Nothing that a head says is
believed here: the process that takes the connection finds out from the same bytes who it is.
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


async def pass_to_owner(proxy: Proxy, connection: Connection, head: bytes) -> bool:
    """Whether another process serves the bottle that this head names, and has the connection now.

    Waits while that process is restarted. Raises Refusal, or Gone.
    """
    owner = _owner(proxy.config, head)
    if owner == proxy.config.number:
        return False
    loop = asyncio.get_running_loop()
    deadline = loop.time() + proxy.limits.connect_seconds
    while not _is_sent(proxy.neighbours[owner], connection, head):
        if loop.time() > deadline:
            raise Refusal(
                "restarting", "The process that serves this bottle is being restarted. Try again.", 503
            )
        if connection.ended or proxy.stopping:
            raise Gone
        await asyncio.sleep(_BETWEEN_TRIES)
    connection.abort()  # only our end of it: the other process has one too
    return True


def _owner(config: Config, head: bytes) -> int:
    """The process of the bottle that a head, which is not parsed yet, claims to be from. Ours, if none."""
    slug = claimed_slug(head)
    return config.owner(slug) if SLUG.fullmatch(slug) else config.number


def _is_sent(neighbour: socket.socket, connection: Connection, head: bytes) -> bool:
    """False when the neighbour's queue, which it finds again after a restart, is full.

    The other process reads what the kernel has by now, and everything after it.
    """
    if connection.transport is None or connection.transport.is_closing():
        raise Gone
    descriptor, seen = connection.transport.get_extra_info("socket").fileno(), head + bytes(connection.buffer)
    try:
        if len(seen) <= IN_MESSAGE:
            socket.send_fds(neighbour, [seen], [descriptor])
        else:
            with os.fdopen(os.memfd_create("seen"), "wb", buffering=0) as file:
                file.write(seen)
                socket.send_fds(neighbour, [b""], [descriptor, file.fileno()])
    except OSError:  # or we have no room for the file
        return False
    return True


class SocketReceiver:
    """Takes the connections that the neighbours pass on. `take_in` is told what was read of each."""

    def __init__(self, take_in: Callable[[socket.socket, bytes], None]) -> None:
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
