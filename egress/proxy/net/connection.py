"""One connection as its owner sees it: bytes in, bytes out, back-pressure, a deadline and one wake-up.

Trust boundary: both ends of every connection are hostile. Nothing is parsed, nothing grows without limit.
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

_UNREAD, _CHOKED, _BUSY = 1, 2, 4

# Bytes as they leave, and the transport that sends them. Nothing else may be sent there before.
Chunk = tuple[asyncio.Transport, bytes]

# Takes the bytes at once, or returns the work that they make.
Sink = Callable[[bytes], Generator[None, None, object] | None]


class Encrypting(Protocol):
    """A transport that can encrypt without sending."""

    def take_pending_chunk(self, data: bytes) -> Chunk | None:
        """None when nothing can be sent any more."""


class Connection(asyncio.BufferedProtocol):
    """Bytes go to `sink` as they come, if it is set; otherwise they wait in `buffer`, bounded.

    Work that a sink returns is done in turns with others. Nothing is read meanwhile, and the end of the
    connection is reported after it.
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
        self.encrypting: Encrypting | None = None  # the same transport, if it speaks TLS
        self.buffer = bytearray()
        self.sink: Sink | None = None
        self.fast_path: Callable[[bytes], bool] | None = None  # may take what arrives, before the buffer does
        self.on_end: Callable[[], None] | None = None
        self.unsent = b""  # waits in a write batch
        self.deadline = math.inf
        self.expired = False
        self.ended = False  # nothing more will be read
        self.broke_off = False  # without a proper end: more may have been meant to come
        self.closed = False
        self.choked = False
        self.half_close = False
        self.leaving = False  # closed, except for what is still unsent
        self.says_goodbye = True  # sends close_notify when it is closed, if it speaks TLS
        self._work: Generator[None, None, object] | None = None
        self._begin: Begin = at_once
        self._ends = False  # as soon as the work is done
        self._held = 0
        self._source: Connection | None = None
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
            self.pause(_UNREAD)
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
            self._source.pause(_CHOKED)

    def resume_writing(self) -> None:
        self.choked = False
        if self._source is not None:
            self._source.release(_CHOKED)
        self.bell.ring()

    # --- its owner calls these

    def feed_from(self, source: Connection | None) -> None:
        """Stop reading `source`, whose bytes are written here, while this connection is full."""
        if self._source is not None:
            self._source.release(_CHOKED)
        self._source = source
        if source is not None and self.choked:
            source.pause(_CHOKED)

    def drain_into(self, sink: Sink, begin: Begin = at_once) -> None:
        """Send what is waiting, and what follows, to `sink`. `begin` starts the work that it returns."""
        self.sink, self._begin = sink, begin
        self._deliver_waiting()

    def stop_draining(self, rest: bytes = b"") -> None:
        self.sink = None
        self.buffer[:0] = rest  # before what came during the work

    def drop_sink(self) -> None:
        """Drop the work that is not done yet, too."""
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
        """Write what waits in a write batch."""
        if self.unsent:
            self.write(b"")

    def take_pending_chunk(self) -> Chunk | None:
        """Return what waits in a write batch, ready to be sent, or None."""
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
        """Whether the loop can watch this transport. If not, the connection is over."""
        return self._watch.registry.takes(transport)

    def _can_wait_to_write(self, transport: asyncio.Transport) -> bool:
        """The loop may drop a descriptor that is not read, and needs it when a write has to wait."""
        return not (self._held or self._ends) or self.can_be_read(transport)

    def close(self) -> None:
        """Flush, then close. There is a limit to how long the other side may take to read the rest."""
        self.flush()
        if self.transport is not None:
            self.transport.close()
            if self.transport.get_write_buffer_size() and not self.leaving:
                self.leaving = True
                self.deadline = self.clock() + self._watch.leaving_seconds

    def close_abruptly(self) -> None:
        """Close without a proper end, where the protocol has one."""
        self.says_goodbye = False
        self.close()

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def reject_unexpected_data(self, _: bytes) -> None:
        """A sink for data that nobody asked for: nothing that follows can be trusted."""
        self.ended = True
        self.abort()

    def expire(self) -> None:
        self.deadline = math.inf
        if self.leaving:
            self.abort()
        else:
            self.expired = True
            self.bell.ring()

    def pause(self, why: int) -> None:
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

    def _deliver_waiting(self) -> None:
        waiting = bytes(self.buffer)
        self.buffer.clear()
        self.release(_UNREAD)
        if waiting:
            self.data_received(waiting)

    def _begin_work(self) -> None:
        self._begin(self._work_on)
        if self._work is not None:
            self.pause(_BUSY)

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
            self._deliver_waiting()
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
            self._notify_end()
        else:
            self.bell.ring()

    def _notify_end(self) -> None:
        if self.on_end is not None:
            self.on_end()
        self.bell.ring()
