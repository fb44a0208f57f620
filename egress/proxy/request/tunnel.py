"""A CONNECT to a bare route: bytes both ways, unread, once the TLS name is the one that was allowed.

Trust boundary: only the ClientHello is looked at; what is inside TLS is between the bottle and the origin.
"""

from __future__ import annotations

from egress.policy.decide import Request
from egress.policy.routes import Route
from egress.proxy.config import Limits
from egress.proxy.errors import Gone
from egress.proxy.net.connection import Connection
from egress.proxy.state.records import Record
from egress.proxy.tls.client_hello import MAX_HELLO, BadHello, HelloReader

UNRECOGNIZED_NAME = bytes.fromhex("15 03 03 00 02 02 70")


async def check_hello(client: Connection, host: str, limits: Limits) -> None:
    """Wait for the ClientHello and compare its name. Raises BadHello with the reason, or Gone."""
    client.deadline = client.clock() + limits.handshake_seconds
    hello = HelloReader()
    while True:
        name = hello.server_name(client.buffer)
        if name == host:
            return
        if name is not None:
            raise BadHello("the TLS name is not the host of the CONNECT")
        if len(client.buffer) > 2 * MAX_HELLO:
            raise BadHello("the ClientHello is too large")
        if client.expired:
            raise BadHello("the ClientHello did not come in time")
        if client.ended:
            raise Gone
        await client.bell.wait()


class Tunnel:
    """A flow."""

    tunnelled = True

    def __init__(
        self,
        client: Connection,
        upstream: Connection,
        limits: Limits,
        record: Record,
        *,
        request: Request,
        route: Route,
    ) -> None:
        self.request = request
        self.route = route
        self._client = client
        self._upstream = upstream
        self._patience = limits.tunnel_idle_seconds
        self._record = record
        self._cut = False

    def cut(self) -> None:
        self._cut = True
        self._record.reason = "cut"
        self._client.abort()
        self._upstream.abort()
        self._client.bell.ring()

    async def run(self) -> None:
        client, upstream = self._client, self._upstream
        client.deadline = client.clock() + self._patience
        client.half_close = upstream.half_close = True
        client.on_end = lambda: _pass_end(client, upstream)
        upstream.on_end = lambda: _pass_end(upstream, client)
        client.feed_from(upstream)
        upstream.feed_from(client)
        try:
            upstream.drain_into(self._to_client)
            client.drain_into(self._to_origin)
            for connection in (client, upstream):
                if connection.ended and connection.on_end:
                    connection.on_end()
            while not (client.closed or upstream.closed or (client.ended and upstream.ended)):
                if self._cut:
                    break
                if client.expired:
                    self._record.reason = "idle"
                    break
                await client.bell.wait()
        finally:
            client.on_end = upstream.on_end = None
            for connection in (client, upstream):
                if client.expired or self._cut:
                    connection.abort()
                else:
                    connection.close()

    # These steps are the whole cost of a small message.

    def _to_origin(self, data: bytes) -> None:
        self._client.deadline = self._client.clock() + self._patience
        self._record.bytes_out += len(data)
        self._upstream.write(data)

    def _to_client(self, data: bytes) -> None:
        self._client.deadline = self._client.clock() + self._patience
        self._record.bytes_in += len(data)
        self._client.write(data)


def _pass_end(ended: Connection, other: Connection) -> None:
    """Tell the other side that this one will send no more; the other may continue."""
    if not ended.closed and other.transport is not None and other.transport.can_write_eof():
        other.transport.write_eof()
