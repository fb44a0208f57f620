"""TLS between a plain transport and a wire, in memory.

The event loop has TLS of its own. It takes a read buffer of 256 KB for each connection, and 256 KB more for a
moment with every message.

Trust boundary: what arrives is the peer's, which may send anything at any time. Certificates and names are
checked by OpenSSL as the session says; nothing is read or written before that is done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from struct import Struct
from typing import Any, cast

from egress.proxy.net.buffers import WIDE
from egress.proxy.net.connection import Chunk, Connection
from egress.proxy.tls.openssl import ARRIVED, LONGEST_RECORD, PLAIN, Session, TlsError

_arrived, _plain = ARRIVED.view, PLAIN.view
_FRONT = LONGEST_RECORD  # where reads go: the start of a record that came before has room in front of it
# For who has not sent much data at once: what is not data, or comes in tiny records, takes long for its size.
_LITTLE = 8 * 1024
_a_little, _much = _arrived[_FRONT : _FRONT + _LITTLE], _arrived[_FRONT:]
_AT_ONCE = 64 * 1024  # is decrypted before anybody asks how much was data; less would make downloads dearer

# Bytes of changes of keys, tickets and alerts, each of which takes up to 40 µs: a large record, or a hundred
# small ones that count as longer than they are, besides one for so many of data.
_MOST_WITHOUT_DATA = 24 * 1024
_LEAST_WITHOUT_DATA = 256
_DATA_FOR_ONE_WITHOUT = 16
_FEW, _TINY_BYTES = 8, 256  # more than so many, and so small: who sends these lets others go first
_header = Struct("!B2xH").unpack_from  # of a record: its kind, and how much follows
_HEADER_BYTES = 5
_FIRST_KIND, _LAST_KIND = 20, 23

Moved = Callable[[int], None]


def whole_records(start: int, end: int) -> tuple[int, int]:
    """How many begin and end in that part of what arrived, and where the last of them ends.

    What can be no record counts as one up to the end: what is wrong with it is for OpenSSL to say, at once.
    """
    records, at = 0, start
    while at + _HEADER_BYTES <= end:
        kind, size = _header(_arrived, at)
        after = at + _HEADER_BYTES + size
        if not _FIRST_KIND <= kind <= _LAST_KIND or size > LONGEST_RECORD - _HEADER_BYTES:
            return records + 1, end
        if after > end:
            break
        at = after
        records += 1
    return records, at


class TlsTransport(asyncio.Transport, asyncio.BufferedProtocol):
    """The transport of `connection`, and the protocol of the transport below.

    The wire hears of its connection when the handshake is done.
    """

    def __init__(self, session: Session, connection: Connection) -> None:
        super().__init__()
        self._connection = connection
        self._session = session
        self._below: asyncio.Transport | None = None
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._without_data = 0  # bytes of records that held none
        self._is_open = False
        self._is_closing = False
        self._is_bulk = False  # what was read last
        self._is_held = False  # by the wire
        self._is_resting = False
        self._left = b""  # of what was read: the start of a record, or what is for after the rest
        self._heir: tuple[TlsTransport, Moved] | None = None  # of what the session passes on

    def take_over(self, below: asyncio.Transport) -> None:
        """A connection that was a wire's, of which nothing is waiting to be read. It goes on being read."""
        below.set_protocol(self)  # both take what is read in the same manner
        self.connection_made(below)

    async def handshake(self, *, seconds: float) -> None:
        """Raises OSError, which TlsError is, or TimeoutError; then the connection is over."""
        too_late = self._opened.get_loop().call_later(seconds, self._fail_handshake, TimeoutError())
        try:
            if self._session.is_client:
                self._shake_hands()
            await self._opened
        except BaseException:
            if self._below is not None:
                self._below.close()  # after the alert that says why
            raise
        finally:
            too_late.cancel()

    def _shake_hands(self) -> bool:
        """Go on with what has arrived; True when it is done. What goes wrong is told to who waits for it."""
        try:
            is_done = self._session.shake_hands()
        except TlsError as error:
            is_done = False
            self._fail_handshake(error)
        self._flush()
        if not is_done or self._opened.done():  # or it is too late
            return False
        self._is_open = True
        self._opened.set_result(None)
        self._connection.encrypting = self
        self._connection.connection_made(self)
        return True

    def _fail_handshake(self, error: Exception) -> None:
        if not self._opened.done():
            self._opened.set_exception(error)

    def pass_on(self, count: int, heir: TlsTransport, moved: Moved) -> None:
        """The next `count` bytes are the heir's to write; `moved` is told of each read how much it was.

        Each record is encrypted again while it is still in the processor's cache: what nobody reads on its
        way costs a third less than in large pieces. Back-pressure and an early end are the wires' matter.
        """
        self._heir = heir, moved
        self._session.pass_on(count, heir._session)

    # --- the transport below calls these

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        below = cast(asyncio.Transport, transport)  # the loop's are not a subclass
        if self._connection.can_be_read(below):
            self._below = below

    def get_buffer(self, _: int) -> memoryview:
        if not self._is_bulk:
            return _a_little
        buffer_limits = self._connection.buffer_limits
        return _much if buffer_limits is WIDE else _much[: buffer_limits.read]

    def buffer_updated(self, count: int) -> None:
        start, left = _FRONT, self._left
        if left:
            start -= len(left)
            _arrived[start:_FRONT] = left
            self._left = b""
        self._take(start, _FRONT + count, count)

    def _take(self, start: int, end: int, count: int) -> None:
        """So many bytes of that are new.

        Of what holds no data, or is in tiny records, not much is decrypted before it is noticed.
        """
        session, size = self._session, 0
        to_pass = session.to_pass
        while start < end:
            records, stop = whole_records(start, min(start + _AT_ONCE, end))
            if not records:
                break
            size = self._open(start, stop, records, size)
            start = stop
            if self._is_resting or self._is_closing or session.is_over:
                break
        if start < end:
            self._left = bytes(_arrived[start:end])
        if to_pass or count >= _LITTLE or self._is_bulk:
            self._update_bulk_mode(count, size, to_pass - session.to_pass)
        if size and not self._is_closing:
            self._connection.data_received(bytes(_plain[:size]))
        if session.is_over:
            self._end()

    def _open(self, start: int, stop: int, records: int, size: int) -> int:
        """All of these records. Returns how much data there is then."""
        session, before = self._session, size
        to_pass = session.to_pass
        try:
            if not self._is_open:
                session.give(start, stop)
                return session.read(records) if self._shake_hands() else 0
            size = session.open(start, stop, records, size)
        except TlsError:
            self._flush()
            self.abort()
            return size
        without = records - session.with_data
        if without:
            self._flush()  # what OpenSSL has to say to that, if anything
        if without or self._without_data:
            self._charge_empty_records(without, stop - start, size - before + to_pass - session.to_pass)
        if records > _FEW and stop - start < records * _TINY_BYTES:
            self._yield_to_loop()
        return size

    def _update_bulk_mode(self, count: int, size: int, passed: int) -> None:
        """Of so much that was read, so much is data, or was passed on."""
        self._is_bulk = count >= _LITTLE and 4 * (size + passed) >= 3 * count
        if passed and self._heir is not None:
            heir, moved = self._heir
            if not self._session.to_pass:
                self._heir = None
            heir._flush_spliced()
            moved(passed)

    def _flush_spliced(self) -> None:
        """Past the transport below, when it has nothing to send: that saves a copy of everything."""
        below = self._below
        if self._is_closing or below is None:
            return
        try:
            if not below.get_write_buffer_size():
                self._session.send_to(below.get_extra_info("socket").fileno())
            self._flush()
        except OSError:
            self.abort()
        if self._session.is_shut:  # something could not be written: what follows would not fit
            self.abort()

    def _charge_empty_records(self, without: int, size: int, data: int) -> None:
        """Of records of that size, so many held nothing of the data. What data is padded with is no waste."""
        self._without_data -= min(self._without_data, data // _DATA_FOR_ONE_WITHOUT)
        if without > 0:
            self._without_data += max(size - data, _LEAST_WITHOUT_DATA * without)
        if self._without_data > _MOST_WITHOUT_DATA:
            self.abort()

    def _yield_to_loop(self) -> None:
        """The loop would go on reading from this connection, up to 32 times, as long as there is more."""
        if self._is_resting or self._is_closing or self._below is None or self._below.is_closing():
            return
        self._below.pause_reading()
        self._is_resting = True
        self._opened.get_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        self._is_resting = False
        left, self._left = self._left, b""
        if left and not self._is_closing:
            _much[: len(left)] = left
            self._take(_FRONT, _FRONT + len(left), len(left))
        if not self._is_held:
            self.resume_reading()

    def eof_received(self) -> None:
        if self._is_open:
            self._connection.broke_off = True  # TLS ends with a goodbye
            self._connection.says_goodbye = False  # nobody is there to hear ours
            self._end()
        else:
            self._fail_handshake(ConnectionResetError("the connection ended during the handshake"))

    def _end(self) -> None:
        self._connection.eof_received()
        self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_closing = self._session.is_shut = True
        if self._is_open:
            self._connection.connection_lost(exc)
        else:
            self._fail_handshake(
                exc or ConnectionResetError("the connection was lost before the handshake was done")
            )
        self._below = None

    def pause_writing(self) -> None:
        if self._is_open:
            self._connection.pause_writing()

    def resume_writing(self) -> None:
        if self._is_open:
            self._connection.resume_writing()

    # --- the wire calls these

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if data and (parcel := self.take_pending_chunk(data)) is not None:
            below, encrypted = parcel
            below.write(encrypted)

    def take_pending_chunk(self, data: bytes | bytearray | memoryview) -> Chunk | None:
        below = self._below
        if self._is_closing or below is None:
            return None
        try:
            return below, self._session.seal(data)
        except TlsError:  # as in the middle of a ticket, which nobody sends in two parts
            self.abort()
            return None

    def _flush(self) -> None:
        below = self._below
        if below is None or not (sealed := self._session.sealed()):
            return
        if not self._is_held or self._connection.can_be_read(below):  # it may have to wait for room
            below.write(sealed)

    def close(self) -> None:
        """Say goodbye, and let what was written leave."""
        if self._is_closing or self._below is None:
            return
        self._is_closing = self._session.is_shut = True
        if self._connection.says_goodbye:
            self._session.say_goodbye()
            self._flush()
        self._below.close()

    def abort(self) -> None:
        self._is_closing = self._session.is_shut = True
        if self._below is not None:
            self._below.abort()

    def is_closing(self) -> bool:
        return self._is_closing

    def get_extra_info(self, name: str, default: object = None) -> Any:
        return default if self._below is None else self._below.get_extra_info(name, default)

    def pause_reading(self) -> None:
        self._is_held = True
        if self._below is not None and not self._is_resting:
            self._below.pause_reading()

    def resume_reading(self) -> None:
        self._is_held = False
        if self._below is not None and not self._is_resting and not self._below.is_closing():
            self._below.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if self._below is not None:
            self._below.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._below.get_write_buffer_size() if self._below is not None else 0

    def can_write_eof(self) -> bool:
        return False
