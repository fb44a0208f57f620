"""One end of a TLS connection, in memory, by the OpenSSL that `cryptography` brings along.

Python's `ssl` has the system's OpenSSL, which is often years older, and copies all that comes and goes once
more. Here records are read where they arrived: large answers that are inspected cost about a sixth less.

Trust boundary: every byte that is read is the peer's. OpenSSL checks certificates and names; nothing is read
or written before that is done. Two kinds of memory are given to it: rooms, which live as long as the process,
and what the caller holds, for the time of one call.
"""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from cryptography.hazmat.bindings.openssl.binding import Binding
from OpenSSL import SSL

from egress.proxy.net.buffers import WIDE, shared_room

log = logging.getLogger(__name__)
_lib, _ffi = Binding.lib, Binding.ffi  # as pyOpenSSL itself has them
# Looked up once: for a small message that takes as long as a call.
_ssl_read, _ssl_write, _ssl_pending = _lib.SSL_read, _lib.SSL_write, _lib.SSL_pending
_bio_read, _bio_write = _lib.BIO_read, _lib.BIO_write

RECORD_BYTES = 16 * 1024  # of data, the most that one can carry
LONGEST_RECORD = 5 + RECORD_BYTES + 2048  # with its header and what encryption may add
_READ_IN_PLACE = 8 * 1024  # and more; for less, copying is cheaper


class Room:
    """For all connections in turn: whatever is in it is taken out before anything else is put there."""

    __slots__ = ("pointer", "size", "view")

    def __init__(self, size: int) -> None:
        self.size = size
        self.view = shared_room(size)
        self.pointer = _ffi.from_buffer(self.view)


ARRIVED = Room(LONGEST_RECORD + WIDE.read)  # records, the start of the first from an earlier read
PLAIN = Room(ARRIVED.size)  # what was in them
_passing = Room(RECORD_BYTES)
_leaving = Room(WIDE.read + 2 * LONGEST_RECORD)
_found = _ffi.new("char **")


class TlsError(OSError):
    """Whatever else is said on this connection cannot be believed."""


class BadCertificate(TlsError):
    """The text says what is wrong with it."""


class WrongName(TlsError):
    """The client greeted with another server name, or with none."""


ContextFor = Callable[[str], SSL.Context | None]


@dataclass
class _Expected:
    """The one server name that a client may greet with, and what it is served with then."""

    host: str
    context_for: ContextFor
    is_missed: bool = False  # it greeted with another, or with none


class Session:
    """`open`, `read` and `seal` raise TlsError; then it is over."""

    def __init__(self, connection: SSL.Connection, expected: _Expected | None) -> None:
        self._connection = connection  # keeps the three; its own functions for them are not used
        self._ssl = connection._ssl
        self._incoming = connection._into_ssl
        self._outgoing = connection._from_ssl
        self._expected = expected
        self.is_client = expected is None
        self.is_over = False  # the peer has said goodbye
        self.with_data = 0  # records, of those that were read last
        self.to_pass = 0  # bytes
        self.is_shut = False  # nothing more is to be sent, or can be
        self._heir: Session | None = None

    def shake_hands(self) -> bool:
        """Go on with what was given; whether it is done. Raises TlsError: then there is an alert to send."""
        result = _lib.SSL_do_handshake(self._ssl)
        if result != 1 and _lib.SSL_get_error(self._ssl, result) == _lib.SSL_ERROR_WANT_READ:
            return False
        if self._expected is not None and self._expected.is_missed:  # maybe by a second greeting only
            _lib.ERR_clear_error()
            raise WrongName
        if result != 1:
            self._fail()
        return True

    def pass_on(self, count: int, heir: Session) -> None:
        """The next `count` bytes are read for `heir` to send, if it still can."""
        self.to_pass, self._heir = count, heir

    def open(self, start: int, end: int, records: int, size: int) -> int:
        """So many records in that part of what has arrived, behind the data that is in PLAIN already.

        Returns how much is there then.
        """
        self.give(start, end)
        if records == 1 and not size and self._heir is None:  # so it is with every small message
            count: int = _ssl_read(self._ssl, PLAIN.pointer, PLAIN.size)
            if count > 0:
                self.with_data = 1
                return count
            self._stop_reading(count)
            return 0
        return self.read(records, size)

    def give(self, start: int, end: int) -> None:
        """That is next, and all of it is read before anything else arrives."""
        size, self.with_data = end - start, 0
        if size >= _READ_IN_PLACE:
            self._incoming = None
            self._read_from(_lib.BIO_new_mem_buf(ARRIVED.pointer + start, size))
            return
        if self._incoming is None:
            self._incoming = _lib.BIO_new(_lib.BIO_s_mem())
            self._read_from(self._incoming)
        if _bio_write(self._incoming, ARRIVED.pointer + start, size) != size:
            raise MemoryError

    def _read_from(self, source: object) -> None:
        if source == _ffi.NULL:
            raise MemoryError
        _lib.BIO_set_mem_eof_return(source, -1)  # its end is not that of the connection
        _lib.SSL_set_bio(self._ssl, source, self._outgoing)  # it frees the one before, and this one some day

    def read(self, records: int, size: int = 0) -> int:
        """What was given, as by `open`."""
        if self._heir is not None:
            records = self._pass_to(self._heir, records)
        inner, pointer, room = self._ssl, PLAIN.pointer, PLAIN.size
        for _ in range(records):  # a call takes from one, never from two
            count = _ssl_read(inner, pointer + size, room - size)
            if count <= 0:
                self._stop_reading(count)
                break
            size += count
            self.with_data += 1
        return size

    def _pass_to(self, heir: Session, records: int) -> int:
        """Returns how many are left, a part of one among them."""
        inner, pointer, to_pass, size = self._ssl, _passing.pointer, self.to_pass, 0
        try:
            while records and to_pass:
                asked = min(to_pass, RECORD_BYTES - size)
                count = _ssl_read(inner, pointer + size, asked)
                if count <= 0:
                    self._stop_reading(count)
                    return 0
                to_pass -= count
                size += count
                if count == RECORD_BYTES or count < asked or not _ssl_pending(inner):
                    records -= 1
                    self.with_data += 1
                if size == RECORD_BYTES:
                    size = 0
                    heir._write_passing(RECORD_BYTES)
        finally:
            self.to_pass = to_pass
            if size:
                heir._write_passing(size)
            if not to_pass:
                self._heir = None
        return records

    def _write_passing(self, count: int) -> None:
        if not self.is_shut and _ssl_write(self._ssl, _passing.pointer, count) <= 0:
            _lib.ERR_clear_error()
            self.is_shut = True

    def _stop_reading(self, count: int) -> None:
        why = _lib.SSL_get_error(self._ssl, count)
        if why == _lib.SSL_ERROR_ZERO_RETURN:
            self.is_over = True
        elif why != _lib.SSL_ERROR_WANT_READ:
            self._fail()

    def seal(self, data: bytes | bytearray | memoryview) -> bytes:
        """Of any length but none, and whatever else is to be sent before."""
        if _ssl_write(self._ssl, data if type(data) is bytes else _ffi.from_buffer(data), len(data)) <= 0:
            self._fail()
        return self.sealed()

    def _fail(self) -> NoReturn:
        code, verified = _lib.ERR_peek_error(), _lib.SSL_get_verify_result(self._ssl)
        _lib.ERR_clear_error()  # or the next connection would be taken for this one
        if self.is_client and verified != _lib.X509_V_OK:
            raise BadCertificate(_text(_lib.X509_verify_cert_error_string(verified)))
        raise TlsError(_text(_lib.ERR_reason_error_string(code)))

    def sealed(self) -> bytes:
        """All that is to be sent."""
        room = _leaving
        count = _bio_read(self._outgoing, room.pointer, room.size)
        if count <= 0:
            return b""
        found = bytes(room.view[:count])
        while count == room.size and (count := _bio_read(self._outgoing, room.pointer, room.size)) > 0:
            found += room.view[:count]
        return found

    def send_to(self, descriptor: int) -> None:
        """What can be sent at once is, from where it lies. Raises OSError."""
        size = min(_lib.BIO_get_mem_data(self._outgoing, _found), _leaving.size)
        if size:
            with suppress(BlockingIOError):
                sent = os.write(descriptor, _ffi.buffer(_found[0], size))
                _bio_read(self._outgoing, _leaving.pointer, sent)  # it is not needed any more

    def say_goodbye(self) -> None:
        """As far as there is still somebody to hear it: theirs is not waited for."""
        if _lib.SSL_shutdown(self._ssl) < 0:
            _lib.ERR_clear_error()


def _text(words: Any) -> str:
    return _ffi.string(words).decode("ascii") if words != _ffi.NULL else "for no reason that is known"


# As strict as Python's own defaults: TLS 1.3, or 1.2 with forward secrecy.
_CIPHERS = b"@SECLEVEL=2:ECDH+AESGCM:ECDH+CHACHA20:ECDH+AES:DHE+AES:!aNULL:!eNULL:!aDSS:!SHA1:!AESCCM"


def _context(method: int) -> SSL.Context:
    context = SSL.Context(method)
    context.set_min_proto_version(SSL.TLS1_2_VERSION)
    context.set_cipher_list(_CIPHERS)
    context.set_options(SSL.OP_NO_RENEGOTIATION | SSL.OP_NO_COMPRESSION)
    context.set_mode(SSL.MODE_RELEASE_BUFFERS)
    context.clear_mode(_lib.SSL_MODE_ENABLE_PARTIAL_WRITE)  # what is written is kept in memory
    return context


class Trust:
    """What servers are verified against: the system's authorities, and others if there are any."""

    def __init__(self, others: Path | None = None) -> None:
        """Raises TlsError when a file of authorities cannot be used."""
        self._context = _context(SSL.TLS_CLIENT_METHOD)
        self._context.set_verify(SSL.VERIFY_PEER)
        self._context.set_alpn_protos([b"http/1.1"])
        self._load_the_systems()
        if others is not None:
            self._load(str(others))

    def _load_the_systems(self) -> None:
        """Where Python's `ssl` finds them. Without any, no server is trusted."""
        found = ssl.get_default_verify_paths()
        directories = os.environ.get(found.openssl_capath_env, found.openssl_capath).split(os.pathsep)
        for directory in filter(os.path.isdir, directories):
            self._load(None, directory)
        if found.cafile:
            try:
                self._load(found.cafile)
            except TlsError as error:
                log.error("Of the system's authorities, %s.", error)

    def _load(self, file: str | None, directory: str | None = None) -> None:
        try:
            self._context.load_verify_locations(file, directory)
        except SSL.Error as error:
            raise TlsError(f"none can be read from {file or directory}") from error

    def session_for(self, host: str) -> Session:
        """The client's end of a connection to `host`."""
        if not host or host.startswith("."):  # to OpenSSL that is any name, or any below
            raise ValueError(f"{host!r} is not the name of a server")
        name, connection = host.encode("ascii"), SSL.Connection(self._context)
        checks = _lib.SSL_get0_param(connection._ssl)
        flags = _lib.X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS | _lib.X509_CHECK_FLAG_NEVER_CHECK_SUBJECT
        _lib.X509_VERIFY_PARAM_set_hostflags(checks, flags)
        if _lib.X509_VERIFY_PARAM_set1_host(checks, name, len(name)) != 1:
            raise ValueError(f"{host!r} is not the name of a server")
        connection.set_tlsext_host_name(name)
        connection.set_connect_state()
        return Session(connection, None)


def server_context() -> SSL.Context:
    context = _context(SSL.TLS_SERVER_METHOD)
    # Few clients come back. They are sent tickets all the same, which are good for nothing, nor for long.
    context.set_options(SSL.OP_CIPHER_SERVER_PREFERENCE | SSL.OP_NO_TICKET)
    context.set_session_cache_mode(SSL.SESS_CACHE_OFF)
    context.set_timeout(1)
    context.set_alpn_select_callback(_choose_protocol)
    return context


def _choose_protocol(_: SSL.Connection, offered: list[bytes]) -> bytes | SSL._NoOverlappingProtocols:
    return b"http/1.1" if b"http/1.1" in offered else SSL.NO_OVERLAPPING_PROTOCOLS


def _select_context(connection: SSL.Connection) -> None:
    """Called when a client has greeted, and again if it was asked to greet once more."""
    expected: _Expected = connection.get_app_data()
    name = connection.get_servername()
    if name is None or name.lower() != expected.host.encode("ascii"):
        expected.is_missed = True
    elif (context := expected.context_for(expected.host)) is not None:
        connection.set_context(context)


# One for all, and for good: OpenSSL comes back to it. It has no certificate: no handshake succeeds unless it
# gives way to a context that has one.
_door = server_context()
_door.set_tlsext_servername_callback(_select_context)


def serve(host: str, context_for: ContextFor) -> Session:
    """The server's end, for `host` alone. `context_for` is asked when a client greets with that name."""
    expected, connection = _Expected(host, context_for), SSL.Connection(_door)
    connection.set_app_data(expected)
    connection.set_accept_state()
    return Session(connection, expected)
