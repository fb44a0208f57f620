"""TLS between a plain transport and a connection, in memory.

The event loop's own TLS takes a read buffer of 256 KB for each connection, and 256 KB more for a moment with
every message. Here all connections share one buffer.

Trust boundary: what arrives is the peer's, which may send anything at any time. Certificates and names are
checked by OpenSSL as the session says; nothing is read or written before that is done.
"""

from __future__ import annotations

import asyncio
from struct import Struct
from typing import Any, cast

from egress.proxy.net.buffers import READ_BYTES
from egress.proxy.net.connection import Chunk, Connection
from egress.proxy.tls.session import Session

LONGEST_RECORD = 5 + 16 * 1024 + 2048  # with its header and what encryption may add
_FRONT = LONGEST_RECORD  # where reads go: the start of a record that came before has room in front of it
_arrived = memoryview(bytearray(_FRONT + READ_BYTES))
_plain = memoryview(bytearray(_FRONT + READ_BYTES))  # what was in the records
# Reads are small until the peer has sent much data at once: tiny records, and those without data, are dear.
_LITTLE = 8 * 1024
_small_room, _large_room = _arrived[_FRONT : _FRONT + _LITTLE], _arrived[_FRONT:]

# Bytes of key updates, tickets and alerts, each of which takes up to 40 µs: a large record, or a hundred
# small ones that count as longer than they are, besides one byte for so many of data.
_MOST_WITHOUT_DATA = 24 * 1024
_LEAST_WITHOUT_DATA = 256
_DATA_FOR_ONE_WITHOUT = 16
_MOST_RECORDS = 256  # are decrypted before others come first
_FEW, _TINY_BYTES = 8, 256  # and of more than a few that are so small, one read
_header = Struct("!B2xH").unpack_from  # of a record: its kind, and how much follows
_HEADER_BYTES = 5
_FIRST_KIND, _LAST_KIND = 20, 23


def record_end(start: int, end: int) -> int:
    """Where the record ends that starts there in what has arrived, or 0 if not all of it is there.

    What cannot be a record ends with everything else: OpenSSL has to say at once what is wrong with it.
    """
    if start + _HEADER_BYTES > end:
        return 0
    kind, size = _header(_arrived, start)
    if not _FIRST_KIND <= kind <= _LAST_KIND or size > LONGEST_RECORD - _HEADER_BYTES:
        return end
    after = start + _HEADER_BYTES + int(size)
    return after if after <= end else 0


class TlsTransport(asyncio.Transport, asyncio.BufferedProtocol):
    """The transport of `connection`, and the protocol of the transport below.

    The connection is told that it is open when the handshake is done.
    """

    def __init__(self, session: Session, connection: Connection) -> None:
        super().__init__()
        self._connection = connection
        self._session = session
        self._below: asyncio.Transport | None = None
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._without_data = 0  # bytes of records without data
        self._is_open = False
        self._is_closing = False
        self._is_bulk = False  # the last read was mostly data
        self._is_paused = False  # by the connection
        self._is_yielding = False
        self._left = b""  # read but not decrypted: the start of a record, or everything after a yield

    def take_over(self, below: asyncio.Transport) -> None:
        """Become the protocol of an open transport on which nothing is waiting to be read."""
        below.set_protocol(self)  # both protocols are buffered ones
        self.connection_made(below)

    async def handshake(self, *, seconds: float) -> None:
        """Raises OSError (which ssl.SSLError is) or TimeoutError; then the connection is over."""
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

    def _shake_hands(self) -> None:
        """Continue with what has arrived. An error goes to the task that waits for the handshake."""
        try:
            is_done = self._session.shake_hands()
        except OSError as error:
            is_done = False
            self._fail_handshake(error)
        self._flush()
        if is_done and not self._opened.done():  # or it is too late
            self._is_open = True
            self._opened.set_result(None)
            self._connection.encrypting = self
            self._connection.connection_made(self)

    def _fail_handshake(self, error: Exception) -> None:
        if not self._opened.done():  # or it succeeded, and the task does not know yet
            self._is_closing = True
            self._opened.set_exception(error)

    # --- the transport below calls these

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        below = cast(asyncio.Transport, transport)  # the loop's are not a subclass
        if self._connection.can_be_read(below):
            self._below = below

    def get_buffer(self, _: int) -> memoryview:
        return _large_room if self._is_bulk else _small_room

    def buffer_updated(self, count: int) -> None:
        start, left = _FRONT, self._left
        if left:
            start -= len(left)
            _arrived[start:_FRONT] = left
            self._left = b""
        self._read(start, _FRONT + count, count)

    def _read(self, start: int, end: int, count: int) -> None:
        """Decrypt the whole records in _arrived[start:end], of which `count` bytes are new."""
        session, first, records, size = self._session, start, 0, 0
        while records < _MOST_RECORDS and not (self._is_closing or session.is_over):
            stop = record_end(start, end)
            if not stop:
                break
            session.feed(_arrived[start:stop])
            if self._is_open:
                size += self._decrypt(stop - start, _plain[size:])
            else:
                self._shake_hands()
            start = stop
            records += 1
        if start < end:
            self._left = bytes(_arrived[start:end])
        if records == _MOST_RECORDS or (records > _FEW and start - first < records * _TINY_BYTES):
            self._yield_to_loop()
        self._is_bulk = count >= _LITTLE and 4 * size >= 3 * count
        if size and not self._is_closing:
            self._connection.data_received(bytes(_plain[:size]))
        if session.is_over:
            self._end()

    def _decrypt(self, size: int, room: memoryview) -> int:
        """The data of one record of `size` bytes, which was fed."""
        try:
            count = self._session.decrypt(room)
        except OSError:
            self._flush()
            self.abort()
            return 0
        if not count or self._without_data:
            self._charge_empty_records(size, count)
        return count

    def _charge_empty_records(self, size: int, data: int) -> None:
        """Charge the peer for records without application data; padding does not count."""
        if data:
            self._without_data -= min(self._without_data, data // _DATA_FOR_ONE_WITHOUT)
            return
        self._flush()  # what OpenSSL answers, if anything
        self._without_data += max(size, _LEAST_WITHOUT_DATA)
        if self._without_data > _MOST_WITHOUT_DATA:
            self.abort()

    def _yield_to_loop(self) -> None:
        """Let others come first: the loop reads up to 32 times in a row from one connection."""
        if self._is_closing or self._below is None or self._below.is_closing():
            return
        self._below.pause_reading()
        self._is_yielding = True
        self._opened.get_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        self._is_yielding = False
        left, self._left = self._left, b""
        if left and not self._is_closing:
            _large_room[: len(left)] = left
            self._read(_FRONT, _FRONT + len(left), len(left))
        if not self._is_paused:
            self.resume_reading()

    def eof_received(self) -> None:
        if self._is_open:
            self._connection.broke_off = True  # TLS ends with close_notify
            self._connection.says_goodbye = False  # nobody is there to get ours
            self._end()
        else:
            self._fail_handshake(ConnectionResetError("the connection ended during the handshake"))

    def _end(self) -> None:
        self._connection.eof_received()
        self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_closing = True
        if self._is_open:
            if not self._session.is_over:
                self._connection.broke_off = True  # also when we ended it, for what the peer sent
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

    # --- the connection calls these

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if data and (parcel := self.take_pending_chunk(data)) is not None:
            below, encrypted = parcel
            below.write(encrypted)

    def take_pending_chunk(self, data: bytes | bytearray | memoryview) -> Chunk | None:
        below = self._below
        if self._is_closing or below is None:
            return None
        try:
            return below, self._session.encrypt(data)
        except OSError:  # as in the middle of a ticket, which nobody sends in two parts
            self.abort()
            return None

    def _flush(self) -> None:
        below = self._below
        if below is None or not (output := self._session.pending_output()):
            return
        if not self._is_paused or self._connection.can_be_read(below):  # it may have to wait for room
            below.write(output)

    def close(self) -> None:
        """Send close_notify, and let what was written leave."""
        if self._is_closing or self._below is None:
            return
        self._is_closing = True
        if self._connection.says_goodbye:
            self._session.say_goodbye()
            self._flush()
        self._below.close()

    def abort(self) -> None:
        self._is_closing = True
        if self._below is not None:
            self._below.abort()

    def is_closing(self) -> bool:
        return self._is_closing

    def get_extra_info(self, name: str, default: object = None) -> Any:
        return default if self._below is None else self._below.get_extra_info(name, default)

    def pause_reading(self) -> None:
        self._is_paused = True
        if self._below is not None and not self._is_yielding:
            self._below.pause_reading()

    def resume_reading(self) -> None:
        self._is_paused = False
        if self._below is not None and not self._is_yielding and not self._below.is_closing():
            self._below.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if self._below is not None:
            self._below.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._below.get_write_buffer_size() if self._below is not None else 0

    def can_write_eof(self) -> bool:
        return False
