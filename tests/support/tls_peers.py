"""Both ends of TLS connections over plain transports: ours, and one that is made by hand."""

from __future__ import annotations

import _ssl
import asyncio
import ctypes
import socket
import ssl
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from egress.proxy.net.connection import Connection
from egress.proxy.net.deadline_timer import DeadlineTimer
from egress.proxy.net.wakeup import Wakeup
from egress.proxy.tls.authority import Authority, _private_pem
from egress.proxy.tls.session import Session
from egress.proxy.tls.transport import TlsTransport
from tests.support.timeouts import PATIENCE

HOST = "api.example.com"
MUCH = bytes(range(256)) * 8192  # 2 MB, no two pieces of it the same length apart
_openssl = ctypes.CDLL(_ssl.__file__)  # finds what the module itself is linked with
_openssl.SSL_key_update.argtypes = [ctypes.c_void_p, ctypes.c_int]
_openssl.SSL_do_handshake.argtypes = [ctypes.c_void_p]
_openssl.SSL_set_block_padding.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_openssl.SSL_ctrl.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_long, ctypes.c_char_p]
_openssl.SSL_ctrl.restype = ctypes.c_long
_SET_HOST_NAME, _SET_GROUPS = 55, 92


class Peer:
    """The other end of the connection: OpenSSL by hand, so that every byte on the way can be seen and cut."""

    def __init__(self, raw: socket.socket, context: ssl.SSLContext, host: str | None) -> None:
        self.raw = raw
        self.received = 0  # bytes on the way, not what is in them
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(
            self.incoming, self.outgoing, server_side=host is None, server_hostname=host
        )

    async def shake_hands(self) -> bytes:
        """Returns what is still to be sent, unsent."""
        while True:
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                await self.send(self.outgoing.read())
                await self.receive()
            else:
                return self.outgoing.read()

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.raw, data)

    async def receive(self) -> None:
        data = await asyncio.get_running_loop().sock_recv(self.raw, 65536)
        self.received += len(data)
        if data:
            self.incoming.write(data)
        else:
            self.incoming.write_eof()

    def sealed(self, plain: bytes) -> bytes:
        self.tls.write(plain)
        return self.outgoing.read()

    def changed_keys(self, *, answered: bool) -> bytes:
        """A message that Python has no function for. `answered` asks the other side to change its own too."""
        inner = openssls(self.tls)
        assert _openssl.SSL_key_update(inner, int(answered)) == 1
        assert _openssl.SSL_do_handshake(inner) == 1
        return self.outgoing.read()

    def pads_to(self, block: int) -> None:
        """From now on every record is as long as a multiple of this."""
        assert _openssl.SSL_set_block_padding(openssls(self.tls), block) == 1

    async def read(self, count: int) -> bytes:
        """Up to so many bytes; fewer when the other side has said goodbye."""
        found = b""
        while len(found) < count:
            try:
                data = self.tls.read(65536)
            except ssl.SSLWantReadError:
                await self.receive()
                continue
            if not data:
                break
            found += data
        return found


def openssls(tls: ssl.SSLObject) -> int | None:
    """Where OpenSSL has its object of this connection."""
    third_word = object.__basicsize__ + ctypes.sizeof(ctypes.c_void_p)
    return ctypes.c_void_p.from_address(id(tls._sslobj) + third_word).value  # type: ignore[attr-defined]


def greet_with(tls: ssl.SSLObject, host: str) -> None:
    """From now on: Python would not say another name than before."""
    assert _openssl.SSL_ctrl(openssls(tls), _SET_HOST_NAME, 0, host.encode()) == 1


def offer(tls: ssl.SSLObject, groups: str) -> None:
    """For the exchange of keys, beginning with the first. Who has only another asks to be greeted again."""
    assert _openssl.SSL_ctrl(openssls(tls), _SET_GROUPS, 0, groups.encode()) == 1


class Seal:
    """TLS 1.3 records of a server, from its key log: what OpenSSL would never send can be sent too."""

    def __init__(self, key_log: Path) -> None:
        lines = (line.split() for line in key_log.read_text().splitlines())
        secret = next(bytes.fromhex(line[2]) for line in lines if line[0] == "SERVER_TRAFFIC_SECRET_0")
        self._aead = AESGCM(_expanded(secret, b"key", 32))
        self._mask = int.from_bytes(_expanded(secret, b"iv", 12))
        self._count = 0

    def record(self, kind: int, content: bytes) -> bytes:
        inner = content + bytes([kind])
        head = b"\x17\x03\x03" + (len(inner) + 16).to_bytes(2)
        nonce = (self._mask ^ self._count).to_bytes(12)
        self._count += 1
        return head + self._aead.encrypt(nonce, inner, head)


def _expanded(secret: bytes, label: bytes, size: int) -> bytes:
    """HKDF-Expand-Label of RFC 8446, with the hash of TLS_AES_256_GCM_SHA384."""
    name = b"tls13 " + label
    info = size.to_bytes(2) + bytes([len(name)]) + name + b"\0"
    return HKDFExpand(hashes.SHA384(), size, info).derive(secret)


class Ours:
    def __init__(self, wire: Connection, tls: TlsTransport) -> None:
        self.wire = wire
        self.tls = tls

    @property
    def is_reading(self) -> bool:
        below = self.tls._below
        return below is not None and below.is_reading()


def serving(authority: Authority, host: str = HOST) -> ssl.SSLContext:
    """A server with a leaf of that CA, for `host`, whatever a client asks for. It sends no tickets."""
    leaf = authority._leaf(host, datetime.now(UTC)).public_bytes(serialization.Encoding.PEM)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.num_tickets = 0
    with tempfile.NamedTemporaryFile() as file:
        file.write(leaf + _private_pem(authority._leaf_key))
        file.flush()
        context.load_cert_chain(file.name)
    return context


@asynccontextmanager
async def connected(ours: Session, theirs: ssl.SSLContext) -> AsyncIterator[tuple[Ours, Peer]]:
    """Our end, whose handshake nobody has begun to wait for, and the peer."""
    near, far = socket.socketpair()
    far.setblocking(False)
    wire = Connection(Wakeup(), DeadlineTimer())
    tls = TlsTransport(ours, wire)
    await asyncio.get_running_loop().create_connection(lambda: tls, sock=near)
    with far:
        async with asyncio.timeout(PATIENCE):
            yield Ours(wire, tls), Peer(far, theirs, None if ours.is_client else HOST)
        tls.abort()
        await asyncio.sleep(0)


@asynccontextmanager
async def opened(authority: Authority, trusting: ssl.SSLContext) -> AsyncIterator[tuple[Ours, Peer]]:
    async with connected(authority.session_for(HOST), trusting) as (ours, peer):
        shaking = asyncio.create_task(ours.tls.handshake(seconds=PATIENCE))
        await peer.send(await peer.shake_hands())
        await shaking
        yield ours, peer


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.001)
