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
from .wire import Wire

_RECORD_BYTES = 16 * 1024  # the most that one can carry
# One of each for all connections: what was read is decrypted and given away before anything else is read.
_encrypted = shared_room(WIDE.read)
_decrypted = shared_room(WIDE.read + 2 * _RECORD_BYTES)  # with a record whose first part came before
_passing = shared_room(_RECORD_BYTES)

Moved = Callable[[int], None]


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
        self._is_open = False
        self._is_closing = False
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
        berth = self._wire.berth
        return _encrypted if berth is WIDE else _encrypted[: berth.read]

    def buffer_updated(self, count: int) -> None:
        self._incoming.write(_encrypted[:count])
        if self._is_open or self._shake_hands():
            self._decrypt()

    def _decrypt(self) -> None:
        """All that is here, and give it away at once."""
        size, is_over = 0, False
        try:
            if self._heir is not None:
                self._pass_on(*self._heir)
            while self._incoming.pending or self._pending():
                count = self._read(WIDE.read, _decrypted[size:])
                if not count:
                    is_over = True
                    break
                size += count
        except ssl.SSLWantReadError:  # the rest of a record is still to come
            pass
        except ssl.SSLZeroReturnError:  # both have said goodbye
            is_over = True
        except ssl.SSLError:
            self._flush()
            self.abort()
            return
        if self._outgoing.pending:  # the answer to a change of keys
            self._flush()
        if size:
            self._wire.data_received(bytes(_decrypted[:size]))
        if is_over:
            self._end()

    def _pass_on(self, heir: TlsTransport, moved: Moved) -> None:
        """Raises what reading raises; what was read until then is passed on."""
        read, left, size = self._read, self._inherited, 0
        try:
            while left:
                if size or left < _RECORD_BYTES:
                    count = read(min(left, _RECORD_BYTES - size), _passing[size:])
                else:  # nearly always
                    count = read(_RECORD_BYTES, _passing)
                if not count:
                    raise ssl.SSLZeroReturnError
                left -= count
                size += count
                if size == _RECORD_BYTES:
                    heir._inherit(_passing)
                    size = 0
            self._heir = None
        finally:
            heir._inherit(_passing[:size])
            heir._flush()
            count, self._inherited = self._inherited - left, left
            if count:
                moved(count)

    def _inherit(self, passed: memoryview) -> None:
        """One record, or less."""
        if passed and not self._is_closing:
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
        if self._is_closing or not data:
            return
        try:
            sent = self._write(data)
            while sent < len(data):
                sent += self._write(memoryview(data)[sent:])
        except ssl.SSLError:  # there is no renegotiation that it could have to wait for
            self.abort()
            return
        if self._below is not None:
            self._below.write(self._outgoing.read())

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
        if self._below is not None:
            self._below.pause_reading()

    def resume_reading(self) -> None:
        if self._below is not None:
            self._below.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if self._below is not None:
            self._below.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._below.get_write_buffer_size() if self._below is not None else 0

    def can_write_eof(self) -> bool:
        return False
