"""Connections that the kernel has no room to watch for end one by one, and the loop goes on."""

from __future__ import annotations

import asyncio
import errno
import select
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from egress.proxy.errors import Unreachable
from egress.proxy.net.connection import Connection
from egress.proxy.net.deadline_timer import DeadlineTimer
from egress.proxy.net.wakeup import Wakeup
from egress.proxy.process import subordinate_epoll
from egress.proxy.process.event_loop import Loop
from egress.proxy.tls.connect import open_connection
from tests.support.timeouts import PATIENCE

Scene = Callable[["Kernel"], Awaitable[None]]


class Kernel:
    """Stands in for the epoll instance; has no room while it is full."""

    def __init__(self, real: select.epoll) -> None:
        self._real = real
        self.is_full = False

    def register(self, descriptor: int, mask: int) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        self._real.register(descriptor, mask)

    def close(self) -> None:
        self._real.close()


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[[Scene], None]:
    monkeypatch.setattr(subordinate_epoll, "epoll", lambda: None)

    def run(scene: Scene) -> None:
        async def within_reason(kernel: Kernel) -> None:
            async with asyncio.timeout(PATIENCE):
                await scene(kernel)

        with asyncio.Runner(loop_factory=Loop) as runner:
            loop: Any = runner.get_loop()
            loop._registered = kernel = Kernel(loop._registered)
            runner.run(within_reason(kernel))

    return run


async def accepted(
    watch: DeadlineTimer, path: Path, kernel: Kernel, *, is_full: bool
) -> tuple[socket.socket, Connection]:
    """A connection to a server of wires, after its wire was told of it."""
    loop, arrived = asyncio.get_running_loop(), asyncio.Event()

    class Told(Connection):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            kernel.is_full = is_full
            super().connection_made(transport)
            kernel.is_full = False
            wires.append(self)
            arrived.set()

    wires: list[Connection] = []
    server = await loop.create_unix_server(lambda: Told(Wakeup(), watch), str(path))
    client = socket.socket(socket.AF_UNIX)
    client.connect(str(path))
    client.setblocking(False)
    await arrived.wait()
    server.close()
    return client, wires[0]


def test_an_accepted_connection_is_closed_and_the_next_one_is_served(
    run: Callable[[Scene], None], tmp_path: Path
) -> None:
    async def scene(kernel: Kernel) -> None:
        loop, watch = asyncio.get_running_loop(), DeadlineTimer()
        for is_full, answer in ((True, b""), (False, b"y")):
            client, wire = await accepted(watch, tmp_path / "s", kernel, is_full=is_full)
            wire.write(b"y")
            assert await loop.sock_recv(client, 1) == answer
            assert wire.ended == is_full
            wire.close()
            client.close()
            (tmp_path / "s").unlink(missing_ok=True)

    run(scene)


def test_a_connection_to_an_origin_is_refused(run: Callable[[Scene], None]) -> None:
    async def scene(kernel: Kernel) -> None:
        near, far = socket.socketpair()
        near.setblocking(False)
        kernel.is_full = True
        watch = DeadlineTimer()
        with pytest.raises(Unreachable):
            await open_connection(near, Connection(Wakeup(), watch), watch)
        far.close()

    run(scene)


def test_what_waits_for_a_socket_gets_an_error_and_can_try_again(run: Callable[[Scene], None]) -> None:
    async def scene(kernel: Kernel) -> None:
        loop = asyncio.get_running_loop()
        with socket.create_server(("127.0.0.1", 0)) as listening, socket.socket() as client:
            client.setblocking(False)
            kernel.is_full = True
            with pytest.raises(OSError, match="No space left"):
                loop.add_reader(listening, lambda: None)
            assert not loop.remove_reader(listening)
            with pytest.raises(OSError, match="No space left"):
                await loop.sock_connect(client, listening.getsockname())
            kernel.is_full = False
            client.close()
            listening.accept()[0].close()
            with socket.socket() as again:
                again.setblocking(False)
                await loop.sock_connect(again, listening.getsockname())
                served, _ = listening.accept()
                with served:
                    loop.call_later(0.01, served.send, b"x")
                    assert await loop.sock_recv(again, 9) == b"x"

    run(scene)


def test_a_connection_that_was_not_read_for_a_while_ends_alone(
    run: Callable[[Scene], None], tmp_path: Path
) -> None:
    """The loop lets go of a descriptor on which something arrives while nobody reads it."""

    async def scene(kernel: Kernel) -> None:
        loop, watch = asyncio.get_running_loop(), DeadlineTimer()
        ends = [await accepted(watch, tmp_path / name, kernel, is_full=False) for name in "ab"]
        (held_client, held), (client, wire) = ends
        held.pause(1)
        held_client.send(b"x")
        await asyncio.sleep(0)
        kernel.is_full = True
        held.release(1)
        kernel.is_full = False
        with pytest.raises(ConnectionResetError):  # it was not read
            await loop.sock_recv(held_client, 1)
        assert held.closed
        client.send(b"x")
        while not wire.buffer:
            await wire.bell.wait()
        for end, each in ends:
            each.close()
            end.close()

    run(scene)
