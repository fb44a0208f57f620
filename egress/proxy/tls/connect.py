"""From an open socket to a connection that can be written to, with TLS where there has to be some."""

from __future__ import annotations

import asyncio
import socket
import ssl

from egress.proxy.errors import Unreachable
from egress.proxy.net.connection import Connection
from egress.proxy.net.deadline_timer import DeadlineTimer
from egress.proxy.tls.session import Session
from egress.proxy.tls.transport import TlsTransport


async def open_connection(
    sock: socket.socket,
    client: Connection,
    watch: DeadlineTimer,
    *,
    tls: ssl.SSLContext | None = None,
    host: str = "",
    seconds: float = 10,
) -> Connection:
    """Open a connection over a socket, with TLS to `host` if there is a context for it. Raises Unreachable.

    It wakes the task that serves the client.
    """
    connection = Connection(client.bell, watch)
    try:
        if tls is None:
            await _adopt(sock, connection)
        else:
            secured = TlsTransport(Session(tls, host), connection)
            await _adopt(sock, secured)
            await secured.handshake(seconds=seconds)
    except ssl.SSLCertVerificationError as error:
        raise Unreachable(
            "upstream-certificate", f"The certificate of {host} is not valid: {error.verify_message}."
        ) from error
    except (OSError, TimeoutError) as error:  # ssl.SSLError is an OSError
        raise Unreachable("upstream-tls", f"No TLS connection to {host} could be opened.") from error
    return connection


async def _adopt(sock: socket.socket, protocol: asyncio.BaseProtocol) -> None:
    """Raises OSError when the loop cannot wait for it."""
    transport, _ = await asyncio.get_running_loop().create_connection(lambda: protocol, sock=sock)
    if transport.is_closing():
        sock.detach()  # the transport has closed it, or will
        raise ConnectionResetError
