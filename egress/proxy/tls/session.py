"""One end of a TLS connection in memory, and the settings that every connection shares.

Trust boundary: every byte that is read comes from the peer. OpenSSL checks certificates and names; nothing is
read or written before that is done.
"""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import cast

log = logging.getLogger(__name__)

# Python's own default, whatever a distribution has made of it: TLS 1.3, or 1.2 with forward secrecy.
_CIPHERS = "@SECLEVEL=2:ECDH+AESGCM:ECDH+CHACHA20:ECDH+AES:DHE+AES:!aNULL:!eNULL:!aDSS:!SHA1:!AESCCM"
_SNI_REFUSED = "CALLBACK_FAILED"


class WrongName(OSError):
    """The client sent another server name, or none."""


class Session:
    """`shake_hands`, `decrypt` and `encrypt` raise OSError; then the connection is over."""

    def __init__(self, context: ssl.SSLContext, host: str | None = None) -> None:
        """Make the client's end of a connection to `host`, or the server's end. Raises ValueError."""
        self._context = (
            context  # kept alive: OpenSSL may call its SNI callback again after a change of context
        )
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.is_client = host is not None
        self.is_over = False  # the peer has sent close_notify
        self.tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=not self.is_client, server_hostname=host
        )
        self._read = cast(Callable[[int, memoryview], int], self.tls.read)
        self._write = cast(Callable[[bytes | bytearray | memoryview], int], self.tls.write)

    def shake_hands(self) -> bool:
        """Continue with what was fed; True when done. After an error there is an alert to send."""
        try:
            self.tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError as error:
            if error.reason == _SNI_REFUSED:
                raise WrongName from error
            raise
        return True

    def feed(self, record: memoryview) -> None:
        """Give OpenSSL one record. It is read before the next, so that OpenSSL's buffer stays small."""
        self._incoming.write(record)

    def decrypt(self, room: memoryview) -> int:
        """Read the data of the record that was fed, and return how much there was."""
        try:
            count = self._read(len(room), room)
        except ssl.SSLWantReadError:
            return 0
        except ssl.SSLZeroReturnError:
            count = 0
        self.is_over = not count
        return count

    def encrypt(self, data: bytes | bytearray | memoryview) -> bytes:
        """Return the records for `data`, which is not empty, after any pending output."""
        sent = self._write(data)
        if sent == len(data):
            return self._outgoing.read()
        # Taken out record by record: OpenSSL's buffer never shrinks.
        records, left = [self._outgoing.read()], memoryview(data)[sent:]
        while left:
            left = left[self._write(left) :]
            records.append(self._outgoing.read())
        return b"".join(records)

    def pending_output(self) -> bytes:
        return self._outgoing.read() if self._outgoing.pending else b""

    def say_goodbye(self) -> None:
        """Send close_notify, without waiting for the peer's."""
        with suppress(ssl.SSLError):
            self.tls.unwrap()


def upstream_context(others: Path | None = None) -> ssl.SSLContext:
    """Trusts the system's authorities, and those in the file `others`. Raises OSError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _set_policy(context)
    context.hostname_checks_common_name = False
    _load_system_authorities(context)
    if others is not None:
        context.load_verify_locations(others)
    return context


def _load_system_authorities(context: ssl.SSLContext) -> None:
    """From where Python's `ssl` finds them. Without any, no server is trusted."""
    found = ssl.get_default_verify_paths()
    # All of several directories, which `found.capath` does not name; an empty value is an error to OpenSSL.
    if directories := os.environ.get(found.openssl_capath_env, found.openssl_capath):
        context.load_verify_locations(capath=directories)
    if found.cafile:
        try:
            context.load_verify_locations(found.cafile)
        except OSError as error:
            log.error("No authorities of the system can be read from %s: %s", found.cafile, error)


def server_context() -> ssl.SSLContext:
    """Without a certificate. It sends no session tickets: few clients come back with one."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _set_policy(context)
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    return context


def _set_policy(context: ssl.SSLContext) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(_CIPHERS)
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
