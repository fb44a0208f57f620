"""TLS between a plain transport and a wire, in memory.

The event loop has TLS of its own. It takes a read buffer of 256 KB for each connection, and 256 KB more for a
moment with every message.

Trust boundary: what arrives is the peer's, which may send anything at any time. Certificates and names are
checked by OpenSSL as the context says; nothing is read or written before that is done.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import cast

from .berths import WIDE, shared_room
from .wire import Parcel, Wire

_RECORD_BYTES = 16 * 1024  # the most that one can carry
# One of each for all connections: what was read is decrypted and given away before anything else is read.
_encrypted = shared_room(WIDE.read)
_decrypted = shared_room(WIDE.read + 2 * _RECORD_BYTES)  # with a record whose first part came before
_passing = shared_room(_RECORD_BYTES)
# For who has not sent much data at once: what is not data, or comes in tiny records, takes long for its size.
_LITTLE = 8 * 1024
_a_little = _encrypted[:_LITTLE]
_AT_ONCE = 64 * 1024  # is decrypted before anybody asks how much was data; less would make downloads dearer

# Bytes of changes of keys, tickets and alerts, each of which takes up to 40 µs: a large record, or a hundred
# small ones that count as longer than they are, besides one for so many of data.
_MOST_WITHOUT_DATA = 24 * 1024
_LEAST_WITHOUT_DATA = 256
_DATA_FOR_ONE_WITHOUT = 16
_FEW, _TINY_BYTES = 8, 256  # more than so many, and so small: who sends these lets others go first
_HEADER_BYTES = 5  # of a record; the last two are how much follows

Moved = Callable[[int], None]


class RecordBorders:
    """Where one ends and the next begins. That much of them is not encrypted."""

    __slots__ = ("_header", "_missing", "_size")

    def __init__(self) -> None:
        self._header = b""  # the start of one
        self._size = self._missing = 0  # of the one that has begun

    def follow(self, start: int, end: int) -> tuple[int, int, int]:
        """How many end in that part of what was read, how long they are, and where the last of them ends."""
        records = whole = 0
        at = start if not self._missing and not self._header else self._finish(start, end)
        if at > start:
            if self._missing or self._header:
                return 0, 0, start
            records, whole = 1, self._size
        while at + _HEADER_BYTES <= end:
            size = _HEADER_BYTES + (_encrypted[at + 3] << 8) + _encrypted[at + 4]
            if at + size > end:
                self._size, self._missing = size, at + size - end
                return records, whole, at
            at += size
            records += 1
            whole += size
        if at < end:
            self._header = bytes(_encrypted[at:end])
        return records, whole, at

    def _finish(self, at: int, end: int) -> int:
        """Where the one ends that had begun before, if it does. If not, more of it is there."""
        if self._header:
            begins = min(end, at + _HEADER_BYTES - len(self._header))
            self._header += _encrypted[at:begins]
            if len(self._header) < _HEADER_BYTES:
                return end
            self._missing = int.from_bytes(self._header[3:])
            self._size = _HEADER_BYTES + self._missing
            self._header, at = b"", begins
        taken = min(self._missing, end - at)
        self._missing -= taken
        return at + taken


class TlsTransport(asyncio.Transport, asyncio.BufferedProtocol):
    """The transport of `wire`, and the protocol of the transport below. `server_hostname` makes it a client.

    The wire hears of its connection when the handshake is done.
    """

    def __init__(self, context: ssl.SSLContext, wire: Wire, *, server_hostname: str | None = None) -> None:
        super().__init__()
        self._wire = wire
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing,
            server_side=server_hostname is None, server_hostname=server_hostname,
        )  # fmt: skip
        # The C functions themselves: with one in Python around each, a small message would cost a tenth more.
        inner = self._tls._sslobj  # type: ignore[attr-defined]
        self._read, self._write, self._pending = inner.read, inner.write, inner.pending
        self._below: asyncio.Transport | None = None
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._borders = RecordBorders()
        self._with_data = 0  # records, since somebody asked
        self._without_data = 0  # bytes of records that held none
        self._is_open = False
        self._is_closing = False
        self._is_over = False  # the peer has said goodbye
        self._is_bulk = False  # what was read last
        self._is_held = False  # by the wire
        self._is_resting = False
        self._left = b""  # of what was read, for after the rest
        self._heir: tuple[TlsTransport, Moved] | None = None
        self._inherited = 0  # bytes that are still to come, and are the heir's

    def take_over(self, below: asyncio.Transport) -> None:
        """A connection that was a wire's, of which nothing is waiting to be read. It goes on being read."""
        below.set_protocol(self)  # both take what is read in the same manner
        self.connection_made(below)

    async def handshake(self, *, seconds: float) -> None:
        """Raises OSError, which ssl.SSLError is, or TimeoutError; then the connection is over."""
        too_late = self._opened.get_loop().call_later(seconds, self._give_up, TimeoutError())
        try:
            if not self._tls.server_side:
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
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return False
        except ssl.SSLError as error:
            self._flush()
            self._give_up(error)
            return False
        self._flush()
        if self._opened.done():  # too late
            return False
        self._is_open = True
        self._opened.set_result(None)
        self._wire.encrypting = self
        self._wire.connection_made(self)
        return True

    def _give_up(self, error: Exception) -> None:
        if not self._opened.done():
            self._opened.set_exception(error)

    def pass_on(self, count: int, heir: TlsTransport, moved: Moved) -> None:
        """The next `count` bytes are the heir's to write; `moved` is told of each read how much it was.

        Each record is encrypted again while it is still in the processor's cache: what nobody reads on its
        way costs a third less than in large pieces. Back-pressure and an early end are the wires' matter.
        """
        self._inherited, self._heir = count, (heir, moved)

    # --- the transport below calls these

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._below = cast(asyncio.Transport, transport)  # the loop's are not a subclass

    def get_buffer(self, _: int) -> memoryview:
        if not self._is_bulk:
            return _a_little
        berth = self._wire.berth
        return _encrypted if berth is WIDE else _encrypted[: berth.read]

    def buffer_updated(self, count: int) -> None:
        inherited = self._inherited
        size = self._decrypt(0, count, 0) if count <= _AT_ONCE else self._decrypt_in_turn(count)
        if inherited or count >= _LITTLE or self._is_bulk:
            self._note_bulk(count, size, inherited - self._inherited)
        if self._outgoing.pending:  # the answer to a change of keys
            self._flush()
        if size and not self._is_closing:
            self._wire.data_received(bytes(_decrypted[:size]))
        if self._is_over:
            self._end()

    def _decrypt_in_turn(self, count: int) -> int:
        """Of what holds no data, or is in tiny records, not much is decrypted before it is noticed."""
        size = 0
        for start in range(0, count, _AT_ONCE):
            end = min(start + _AT_ONCE, count)
            size = self._decrypt(start, end, size)
            if self._is_resting:
                self._left = bytes(_encrypted[end:count])
            if self._is_resting or self._is_over or self._is_closing:
                break
        return size

    def _note_bulk(self, count: int, size: int, passed: int) -> None:
        """Of so much that was read, so much is data, or was passed on."""
        self._is_bulk = count >= _LITTLE and 4 * (size + passed) >= 3 * count
        if passed and self._heir is not None:
            heir, moved = self._heir
            if not self._inherited:
                self._heir = None
            heir._flush()
            moved(passed)

    def _decrypt(self, start: int, end: int, size: int) -> int:
        """That part of what was read, behind what is there already. Returns how much is there then."""
        incoming = self._incoming
        records, whole, last = self._borders.follow(start, end)
        if not self._is_open:
            incoming.write(_encrypted[start:end])
            return self._read_data(size) if self._shake_hands() else size
        if records:
            before, owed = size, self._inherited
            incoming.write(_encrypted[start:last])
            size = self._read_data(size)
            if records > self._with_data or self._without_data:
                self._note_waste(records, whole, size - before + owed - self._inherited)
            if records > _FEW and whole < records * _TINY_BYTES:
                self._rest()
        if last < end:  # what is not whole yet is not asked for: in vain that costs as much as decrypting it
            incoming.write(_encrypted[last:end])
        return size

    def _read_data(self, size: int) -> int:
        incoming, read, is_left = self._incoming, self._read, self._pending
        self._with_data = 0
        try:
            if self._heir is not None:
                self._pass_on(self._heir[0])
            while incoming.pending or is_left():
                count = read(WIDE.read, _decrypted[size:] if size else _decrypted)
                if not count:
                    self._is_over = True
                    break
                size += count
                self._with_data += 1  # a read takes from one record, never from two
        except ssl.SSLWantReadError:  # the rest of a record is still to come
            pass
        except ssl.SSLZeroReturnError:  # both have said goodbye
            self._is_over = True
        except ssl.SSLError:
            self._flush()
            self.abort()
        return size

    def _note_waste(self, records: int, whole: int, data: int) -> None:
        """So many records, of so many bytes, held so much data. What data is padded with is no waste."""
        self._without_data -= min(self._without_data, data // _DATA_FOR_ONE_WITHOUT)
        if records > self._with_data:
            self._without_data += max(whole - data, _LEAST_WITHOUT_DATA * (records - self._with_data))
        if self._without_data > _MOST_WITHOUT_DATA:
            self.abort()

    def _rest(self) -> None:
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
            _encrypted[: len(left)] = left
            self.buffer_updated(len(left))
        if not self._is_held:
            self.resume_reading()

    def _pass_on(self, heir: TlsTransport) -> None:
        """Raises what reading raises; what was read until then is the heir's."""
        incoming, read, is_left = self._incoming, self._read, self._pending
        left, size = self._inherited, 0
        try:
            while left and (incoming.pending or is_left()):
                if size or left < _RECORD_BYTES:
                    count = read(min(left, _RECORD_BYTES - size), _passing[size:])
                else:  # nearly always
                    count = read(_RECORD_BYTES, _passing)
                if not count:
                    raise ssl.SSLZeroReturnError
                left -= count
                size += count
                self._with_data += 1
                if size == _RECORD_BYTES:
                    size = 0
                    heir._inherit(_passing)
        finally:
            if size:
                heir._inherit(_passing[:size])
            self._inherited = left

    def _inherit(self, passed: memoryview) -> None:
        """One record, or less."""
        if not self._is_closing:
            try:
                self._write(passed)
            except ssl.SSLError:
                self.abort()

    def eof_received(self) -> None:
        if self._is_open:
            self._wire.broke_off = True  # TLS ends with a goodbye
            self._wire.says_goodbye = False  # nobody is there to hear ours
            self._end()
        else:
            self._give_up(ConnectionResetError("the connection ended during the handshake"))

    def _end(self) -> None:
        self._wire.eof_received()
        self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_closing = True
        if self._is_open:
            self._wire.connection_lost(exc)
        else:
            self._give_up(
                exc or ConnectionResetError("the connection was lost before the handshake was done")
            )
        self._below = None

    def pause_writing(self) -> None:
        if self._is_open:
            self._wire.pause_writing()

    def resume_writing(self) -> None:
        if self._is_open:
            self._wire.resume_writing()

    # --- the wire calls these

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if data and (parcel := self.wrap_up(data)) is not None:
            below, encrypted = parcel
            below.write(encrypted)

    def wrap_up(self, data: bytes | bytearray | memoryview) -> Parcel | None:
        below = self._below
        if self._is_closing or below is None:
            return None
        try:
            sent = self._write(data)
            while sent < len(data):
                sent += self._write(memoryview(data)[sent:])
        except ssl.SSLError:  # there is no renegotiation that it could have to wait for
            self.abort()
            return None
        return below, self._outgoing.read()

    def _flush(self) -> None:
        if self._below is not None and self._outgoing.pending:
            self._below.write(self._outgoing.read())

    def close(self) -> None:
        """Say goodbye, and let what was written leave."""
        if self._is_closing or self._below is None:
            return
        self._is_closing = True
        if self._wire.says_goodbye:
            with suppress(ssl.SSLError):  # theirs is not waited for
                self._tls.unwrap()
            self._flush()
        self._below.close()

    def abort(self) -> None:
        self._is_closing = True
        if self._below is not None:
            self._below.abort()

    def is_closing(self) -> bool:
        return self._is_closing

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
