"""Both ends of TLS connections over plain transports: ours, and one that is made by hand."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from egress.proxy.ca import Authority
from egress.proxy.tls import TlsTransport
from egress.proxy.wire import Doorbell, Watch, Wire

HOST = "api.example.com"
MUCH = bytes(range(256)) * 8192  # 2 MB, no two pieces of it the same length apart
PATIENCE = 20.0


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


class Ours:
    def __init__(self, wire: Wire, tls: TlsTransport) -> None:
        self.wire = wire
        self.tls = tls

    @property
    def is_reading(self) -> bool:
        below = self.tls._below
        return below is not None and below.is_reading()


@asynccontextmanager
async def connected(
    ours: ssl.SSLContext, theirs: ssl.SSLContext, *, as_client: bool = False
) -> AsyncIterator[tuple[Ours, Peer]]:
    """Our end, whose handshake nobody has begun to wait for, and the peer."""
    near, far = socket.socketpair()
    far.setblocking(False)
    wire = Wire(Doorbell(), Watch())
    tls = TlsTransport(ours, wire, server_hostname=HOST if as_client else None)
    await asyncio.get_running_loop().create_connection(lambda: tls, sock=near)
    with far:
        async with asyncio.timeout(PATIENCE):
            yield Ours(wire, tls), Peer(far, theirs, None if as_client else HOST)
        tls.abort()
        await asyncio.sleep(0)


@asynccontextmanager
async def opened(authority: Authority, trusting: ssl.SSLContext) -> AsyncIterator[tuple[Ours, Peer]]:
    async with connected(authority.context_for(HOST), trusting) as (ours, peer):
        shaking = asyncio.create_task(ours.tls.handshake(seconds=PATIENCE))
        await peer.send(await peer.shake_hands())
        await shaking
        yield ours, peer


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.001)
