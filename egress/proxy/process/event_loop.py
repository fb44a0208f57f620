"""The event loop: uvloop, for which the kernel has no room to watch a descriptor is an error, not the end.

The kernel counts how many descriptors the epoll instances of an account watch. Bottles of the same account
can use up that number, and libuv aborts the process when it is refused one more.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVarTuple

import uvloop

from egress.proxy.process import subordinate_epoll

_Ts = TypeVarTuple("_Ts")


class Loop(uvloop.Loop):
    """Registers each descriptor itself, before libuv does: libuv then finds it there and only changes it.

    Where the host has a subordinate uid for us, its epoll instance counts for that one, so that no bottle can
    use up the number.
    """

    def __init__(self) -> None:
        super().__init__()
        own = self._get_backend_id()  # type: ignore[attr-defined]  # uvloop has it for its own tests
        if (other := subordinate_epoll.epoll()) is not None:
            os.dup2(other, own, inheritable=False)  # nothing is registered before the loop runs
            os.close(other)
        self.is_apart = other is not None
        self._registered = select.epoll.fromfd(os.dup(own))

    def close(self) -> None:
        self._registered.close()
        super().close()

    def claim(self, descriptor: int) -> None:
        """Register a descriptor before libuv watches it. Raises OSError."""
        with suppress(FileExistsError):
            self._registered.register(descriptor, 0)

    # uvloop's own functions that register a descriptor. Each raises OSError here.

    def add_reader(self, fd: Any, callback: Callable[[*_Ts], Any], *args: *_Ts) -> None:
        super().add_reader(fd, callback, *args)
        self._claim_or(self.remove_reader, fd)

    def add_writer(self, fd: Any, callback: Callable[[*_Ts], Any], *args: *_Ts) -> None:
        super().add_writer(fd, callback, *args)
        self._claim_or(self.remove_writer, fd)

    def _claim_or(self, undo: Callable[[Any], Any], fd: Any) -> None:
        try:
            self.claim(fd if isinstance(fd, int) else fd.fileno())
        except OSError:
            undo(fd)
            raise

    async def sock_connect(self, sock: socket.socket, address: Any) -> None:
        """To an address, not to a name."""
        with suppress(BlockingIOError):
            sock.connect(address)
            return
        await self._ready(self.add_writer, self.remove_writer, sock)
        if error := sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            raise OSError(error, os.strerror(error))

    async def sock_recv(self, sock: socket.socket, nbytes: int) -> bytes:
        while True:
            with suppress(BlockingIOError):
                return sock.recv(nbytes)
            await self._ready(self.add_reader, self.remove_reader, sock)

    async def sock_sendall(self, sock: socket.socket, data: Any) -> None:
        left = memoryview(data)
        while left:
            try:
                left = left[sock.send(left) :]
            except BlockingIOError:
                await self._ready(self.add_writer, self.remove_writer, sock)

    async def _ready(
        self, add: Callable[..., None], remove: Callable[[Any], Any], sock: socket.socket
    ) -> None:
        ready: asyncio.Future[None] = self.create_future()

        def note() -> None:
            if not ready.done():
                ready.set_result(None)

        add(sock, note)
        try:
            await ready
        finally:
            remove(sock)
