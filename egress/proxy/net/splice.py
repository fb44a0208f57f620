"""One direction of a tunnel, moved within the kernel: what nobody reads need not be copied here and back.

Trust boundary: as in the tunnel, nothing is looked at. What is under way is bounded by the pipe, which takes
the place of the room that the wires have for this direction. How many pipes it gets is not up to a bottle.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Callable
from contextlib import suppress

from egress.proxy.net.buffers import PIPE_BYTES, READ_BYTES
from egress.proxy.net.connection import Connection

POSSIBLE = hasattr(os, "splice")
BULK_BYTES = READ_BYTES // 2  # that much in one read: copying is what limits this transfer
MOST = 64  # at once, in this process: each takes four descriptors and a pipe, and bottles could want many
_FLAGS = os.SPLICE_F_MOVE | os.SPLICE_F_NONBLOCK if POSSIBLE else 0


class Pipes:
    """Those of one bottle: never more than are left for all others, so that the next few find some."""

    _taken = 0  # by all bottles

    def __init__(self) -> None:
        self._own = 0

    def take(self) -> bool:
        """Whether there is one to have."""
        if self._own >= MOST - Pipes._taken:
            return False
        self._own += 1
        Pipes._taken += 1
        return True

    def give_back(self) -> None:
        self._own -= 1
        Pipes._taken -= 1


class Splice:
    """From its start until `close`, what `source` receives goes to `target` past both of their transports.

    Only this direction: each transport goes on with the other one.
    """

    def __init__(
        self, source: Connection, target: Connection, pipes: Pipes, moved: Callable[[int], None]
    ) -> None:
        self._source = source
        self._target = target
        self._pipes = pipes
        self._moved = moved
        self._loop = asyncio.get_running_loop()
        self._descriptors: list[int] = []
        self._in_pipe = 0
        self._closed = False

    def start(self) -> None:
        """As soon as what was written before has left; where the system has nothing to spare, not at all."""
        self._source.pause_for_splice()
        self._target.when_written(self._begin)

    def close(self) -> None:
        """Until then the sockets stay open, whatever becomes of their transports."""
        self._closed = True
        if self._descriptors:
            self._pipes.give_back()
            self._loop.remove_reader(self._from)
            self._loop.remove_writer(self._to)
        self._let_go()

    def _let_go(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.pop())

    def _stay_out(self) -> None:
        """It is copied as before."""
        self._let_go()
        self._source.resume_after_splice()

    def _begin(self) -> None:
        if self._closed:  # what was written before has left only now
            return
        if not self._pipes.take():
            self._stay_out()
            return
        try:
            self._from, self._to = self._duplicate(self._source), self._duplicate(self._target)
            self._outlet, self._inlet = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
            self._descriptors += (self._outlet, self._inlet)
            _widen(self._inlet)
            self._loop.add_reader(self._from, self._fill)
        except OSError:
            self._pipes.give_back()
            self._stay_out()
            return

    def _duplicate(self, connection: Connection) -> int:
        """The loop watches a descriptor for one party only, and its transport has the original."""
        if connection.transport is None:
            raise OSError
        descriptor = os.dup(connection.transport.get_extra_info("socket").fileno())
        self._descriptors.append(descriptor)
        return descriptor

    def _fill(self) -> None:
        """Called only while the pipe is empty."""
        try:
            self._in_pipe = os.splice(self._from, self._inlet, PIPE_BYTES, flags=_FLAGS)
        except BlockingIOError:
            return
        except OSError:
            self._fail()
            return
        if self._in_pipe:
            self._empty()
        else:
            self._loop.remove_reader(self._from)
            self._source.eof_received()

    def _empty(self) -> None:
        try:
            while self._in_pipe:
                count = os.splice(self._outlet, self._to, self._in_pipe, flags=_FLAGS)
                self._in_pipe -= count
                self._moved(count)
        except BlockingIOError:
            self._wait_for_room()
        except OSError:
            self._fail()

    def _wait_for_room(self) -> None:
        self._loop.remove_reader(self._from)
        try:
            self._loop.add_writer(self._to, self._go_on)
        except OSError:
            self._fail()

    def _go_on(self) -> None:
        self._loop.remove_writer(self._to)
        try:
            self._loop.add_reader(self._from, self._fill)
        except OSError:
            self._fail()
            return
        self._empty()

    def _fail(self) -> None:
        self.close()
        self._source.abort()
        self._target.abort()


def _widen(pipe: int) -> None:
    """Fewer, larger steps. A user with very many pipes has to do with small ones."""
    with suppress(OSError):
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
