"""Connections to origins: opened only to checked addresses, verified strictly, reused within one bottle.

Trust boundary: what an origin sends unasked ends the connection, so that it can never answer a later request.
"""

from __future__ import annotations

import asyncio
import math
import socket

from egress.proxy.errors import Unreachable
from egress.proxy.net.connection import Connection, DeadlineTimer, Wakeup
from egress.proxy.tls.openssl import BadCertificate, Session
from egress.proxy.tls.transport import TlsTransport

Key = tuple[str, str, tuple[str, ...]]  # scheme, host, pinned addresses

KEPT_SECONDS = 30.0
TRUSTED_SECONDS = 3.0  # origins close idle connections at any moment; sooner than this is rare


async def open_connection(
    sock: socket.socket,
    client: Connection,
    watch: DeadlineTimer,
    *,
    tls: Session | None = None,
    host: str = "",
    seconds: float = 10,
) -> Connection:
    """A wire over an open socket, with TLS to `host` if there is a session for it. Raises Unreachable.

    Whoever serves the client is told what happens on it, and it may keep as much as the client's.
    """
    connection = Connection(client.bell, watch, buffer_limits=client.buffer_limits)
    try:
        if tls is None:
            await _adopt(sock, connection)
        else:
            secured = TlsTransport(tls, connection)
            await _adopt(sock, secured)
            await secured.handshake(seconds=seconds)
    except BadCertificate as error:
        raise Unreachable(
            "upstream-certificate", f"The certificate of {host} is not valid: {error}."
        ) from error
    except (OSError, TimeoutError) as error:  # TlsError is an OSError
        raise Unreachable("upstream-tls", f"No TLS connection to {host} could be opened.") from error
    return connection


async def _adopt(sock: socket.socket, protocol: asyncio.BaseProtocol) -> None:
    """Raises OSError when the loop cannot wait for it."""
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_connection(lambda: protocol, sock=sock)
    if transport.is_closing():
        sock.detach()  # the transport has closed it, or will
        raise ConnectionResetError


_nobody = Wakeup()  # rung by connections that nobody waits for


class Pool:
    """Idle connections of one bottle. Each was dialled to an address that was checked for its key."""

    def __init__(self, most: int) -> None:
        self._idle: dict[Key, list[tuple[Connection, float]]] = {}
        self._most = most
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def take(self, key: Key, client: Connection, *, repeatable: bool) -> Connection | None:
        """The freshest idle connection. One that was idle for long serves repeatable requests only."""
        idle = self._idle.get(key)
        while idle:
            connection, since = idle.pop()
            self._count -= 1
            if connection.ended:
                continue
            if connection.clock() - since <= (KEPT_SECONDS if repeatable else TRUSTED_SECONDS):
                connection.bell, connection.sink = client.bell, None
                if connection.buffer_limits is not client.buffer_limits:
                    connection.settle_in(client.buffer_limits)
                return connection
            connection.close()
        return None

    def give_back(self, key: Key, connection: Connection) -> None:
        """Nothing is written to it any more."""
        if self._count >= self._most:
            connection.close()
            return
        connection.deadline = math.inf
        connection.bell = _nobody
        connection.sink = connection.reject_unexpected_data
        self._idle.setdefault(key, []).append((connection, connection.clock()))
        self._count += 1

    def prune(self, now: float) -> None:
        """Let go of what has ended or was idle for too long."""
        for key, idle in list(self._idle.items()):
            kept = []
            for connection, since in idle:
                if connection.ended or now - since > KEPT_SECONDS:
                    connection.close()
                else:
                    kept.append((connection, since))
            self._count -= len(idle) - len(kept)
            self._idle[key] = kept
            if not kept:
                del self._idle[key]

    def close(self) -> None:
        for idle in self._idle.values():
            for connection, _ in idle:
                connection.close()
        self._idle.clear()
        self._count = 0
