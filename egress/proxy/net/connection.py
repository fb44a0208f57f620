"""One connection as its owner sees it: bytes in, bytes out, back-pressure, a deadline and one doorbell.

Trust boundary: both ends of every wire are hostile. Nothing is parsed here and nothing grows without limit.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Generator
from typing import Protocol, cast

from egress.proxy.net.buffers import READ_BYTES, UNREAD_BYTES, UNSENT_BYTES
from egress.proxy.net.deadline_timer import DeadlineTimer
from egress.proxy.net.fair_scheduler import Begin, advance, at_once
from egress.proxy.net.wakeup import Wakeup

log = logging.getLogger(__name__)

# One for all connections: what was read is taken out of it before anything else is read.
_arrived = memoryview(bytearray(READ_BYTES))

_UNREAD, _CHOKED, _LENT, _BUSY = 1, 2, 4, 8

# Bytes as they leave, and who sends them: nothing else may be sent there before.
Chunk = tuple[asyncio.Transport, bytes]

# Either takes the bytes at once, or gives back the work that they make.
Sink = Callable[[bytes], Generator[None, None, object] | None]


class Encrypting(Protocol):
    """A transport that can be asked for what it would send."""

    def take_pending_chunk(self, data: bytes) -> Chunk | None:
        """None when nothing can be sent any more."""


class Connection(asyncio.BufferedProtocol):
    """`sink`, when set, gets the bytes as they come; otherwise they wait in `buffer`, bounded.

    What makes work is worked on in turns; nothing is read meanwhile, and an end is told when it is done.

    `source` is the wire whose bytes are written here: it is not read while this one is full.
    """

    def __init__(
        self,
        bell: Wakeup,
        watch: DeadlineTimer,
        opened: Callable[[Connection], None] | None = None,
    ) -> None:
        self.bell = bell
        self.clock = watch.clock
        self.transport: asyncio.Transport | None = None  # until it is open, and again when it is closed
        self.encrypting: Encrypting | None = None  # is the transport too, if it speaks TLS
        self.buffer = bytearray()
        self.sink: Sink | None = None
        self.fast_path: Callable[[bytes], bool] | None = None  # asked first whether it takes what arrives
        self.on_end: Callable[[], None] | None = None
        self.unsent = b""  # waits in an outbox
        self.deadline = math.inf
        self.expired = False
        self.ended = False  # nothing more will be read
        self.broke_off = False  # as if by accident: there may have been more to come
        self.closed = False
        self.choked = False
        self.half_close = False
        self.leaving = False  # closed, but for what is still unsent
        self.says_goodbye = True  # when it is closed, if it speaks TLS
        self._work: Generator[None, None, object] | None = None
        self._begin: Begin = at_once
        self._ends = False  # as soon as the work is done
        self._held = 0
        self._source: Connection | None = None
        self._when_written: Callable[[], None] | None = None
        self._watch = watch
        self._opened = opened

    # --- asyncio calls these

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's are not a subclass
        if not self.can_be_read(transport):
            self.ended = self.broke_off = True
            return
        self.transport = transport
        transport.set_write_buffer_limits(high=UNSENT_BYTES)
        self._watch.add(self)
        if self._opened:
            self._opened(self)

    def get_buffer(self, _: int) -> memoryview:
        return _arrived

    def buffer_updated(self, count: int) -> None:
        self.data_received(bytes(_arrived[:count]))

    def data_received(self, data: bytes) -> None:
        if self.sink is not None and self._work is None:
            self._work = self.sink(data)
            if self._work is not None:
                self._begin_work()
            return
        if self.fast_path is not None and self.fast_path(data):
            return
        self.buffer += data
        if len(self.buffer) > UNREAD_BYTES:
            self.hold(_UNREAD)
        self.bell.ring()

    def eof_received(self) -> bool:
        self._end()
        return self.half_close

    def connection_lost(self, exc: Exception | None) -> None:
        self.broke_off = self.broke_off or (exc is not None and not self.ended)
        self.closed = True
        self.leaving = False
        self.transport = self.encrypting = None  # or they would hold each other
        self._watch.discard(self)
        if self._source is not None:
            self._source.release(_CHOKED)
        self._end()

    def pause_writing(self) -> None:
        self.choked = True
        if self._source is not None:
            self._source.hold(_CHOKED)

    def resume_writing(self) -> None:
        self.choked = False
        self._tell_written()
        if self._source is not None:
            self._source.release(_CHOKED)
        self.bell.ring()

    # --- its owner calls these

    def feed_from(self, source: Connection | None) -> None:
        """From now on `source` is what gets written here; it waits while this wire is full."""
        if self._source is not None:
            self._source.release(_CHOKED)
        self._source = source
        if source is not None and self.choked:
            source.hold(_CHOKED)

    def drain_into(self, sink: Sink, begin: Begin = at_once) -> None:
        """Give what is waiting, and everything after it, to `sink`. `begin` is how its work is begun."""
        self.sink, self._begin = sink, begin
        self._give_waiting()

    def stop_draining(self, rest: bytes = b"") -> None:
        self.sink = None
        self.buffer[:0] = rest  # before what came while it was worked on

    def drop_sink(self) -> None:
        """With the work that is not done yet."""
        self.sink = None
        if self._work is not None:
            self._work.close()
            self._finish_work()

    def take(self, count: int) -> bytes:
        taken = bytes(self.buffer[:count])
        del self.buffer[:count]
        if len(self.buffer) <= UNREAD_BYTES:
            self.release(_UNREAD)
        return taken

    def flush(self) -> None:
        """Write what waits in an outbox, if it is not written yet."""
        if self.unsent:
            self.write(b"")

    def take_pending_chunk(self) -> Chunk | None:
        """What waits in an outbox, ready to be sent, if there is something."""
        data, self.unsent = self.unsent, b""
        if not data or self.transport is None or not self._can_wait_to_write(self.transport):
            return None
        return (self.transport, data) if self.encrypting is None else self.encrypting.take_pending_chunk(data)

    def write(self, data: bytes) -> None:
        if self.unsent:
            data, self.unsent = self.unsent + data, b""
        transport = self.transport
        if transport is not None and self._can_wait_to_write(transport):
            transport.write(data)

    def can_be_read(self, transport: asyncio.Transport) -> bool:
        """Whether the loop can wait for this connection of ours; if not, it is over."""
        return self._watch.registry.takes(transport)

    def _can_wait_to_write(self, transport: asyncio.Transport) -> bool:
        """While nothing is read the loop may let go of it, and it needs it when a write has to wait."""
        return not (self._held or self._ends) or self.can_be_read(transport)

    def when_written(self, then: Callable[[], None]) -> None:
        """Call it once everything that was written so far has left."""
        self.flush()
        self._when_written = then
        if self.transport is not None:
            self.transport.set_write_buffer_limits(high=0)
        if not self.choked:
            self._tell_written()

    def pause_for_splice(self) -> None:
        """Somebody else reads from the socket, until `resume_after_splice`."""
        self.hold(_LENT)

    def resume_after_splice(self) -> None:
        self.release(_LENT)

    def close(self) -> None:
        """Flush, then close. What the other side does not read in time is not waited for."""
        self.flush()
        if self.transport is not None:
            self.transport.close()
            if self.transport.get_write_buffer_size() and not self.leaving:
                self.leaving = True
                self.deadline = self.clock() + self._watch.leaving_seconds

    def close_abruptly(self) -> None:
        """Close so that it does not look like an end that was meant, where there is a difference."""
        self.says_goodbye = False
        self.close()

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def reject_unexpected_data(self, _: bytes) -> None:
        """A sink for data that nobody asked for: whatever follows on this connection cannot be believed."""
        self.ended = True
        self.abort()

    def expire(self) -> None:
        self.deadline = math.inf
        if self.leaving:
            self.abort()
        else:
            self.expired = True
            self.bell.ring()

    def hold(self, why: int) -> None:
        if not self._held and self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()
        self._held |= why

    def release(self, why: int) -> None:
        if not self._held & why:
            return
        self._held &= ~why
        transport = self.transport
        if self._held or transport is None or transport.is_closing():
            return
        if self.can_be_read(transport):
            transport.resume_reading()

    def _give_waiting(self) -> None:
        waiting = bytes(self.buffer)
        self.buffer.clear()
        self.release(_UNREAD)
        if waiting:
            self.data_received(waiting)

    def _begin_work(self) -> None:
        self._begin(self._work_on)
        if self._work is not None:
            self.hold(_BUSY)

    def _work_on(self) -> bool:
        if self._work is None:
            return False
        try:
            if advance(self._work):
                return True
        except Exception:
            log.exception("a connection ended with an error")
            self.sink = self.reject_unexpected_data
            self.abort()
        self._finish_work()
        return False

    def _finish_work(self) -> None:
        self._work = None
        if self.sink is not None:
            self._give_waiting()
        elif self.buffer:
            self.bell.ring()
        if self._work is None:
            self.release(_BUSY)
            if self._ends:
                self._end()

    def _end(self) -> None:
        self._ends = True
        if self._work is None:
            self.ended = True
            self._tell_end()
        else:
            self.bell.ring()

    def _tell_written(self) -> None:
        then, self._when_written = self._when_written, None
        if then is not None:
            if self.transport is not None:
                self.transport.set_write_buffer_limits(high=UNSENT_BYTES)
            then()

    def _tell_end(self) -> None:
        if self.on_end is not None:
            self.on_end()
        self.bell.ring()
