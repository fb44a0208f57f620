"""A CONNECT: a tunnel to the origin, or the end of the bottle's TLS, behind which its requests are served.

Trust boundary: until the ClientHello is here, only a host and a port are known, and either may be a lie.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol

from egress.policy.decide import used_up
from egress.policy.routes import Route
from egress.proxy.errors import BadRequest, Gone
from egress.proxy.http.targets import Target
from egress.proxy.net.connection import Connection
from egress.proxy.request.admission import (
    CurrentRequest,
    admit_connect,
    admit_inside,
    admit_tunnel,
    tunnelled,
)
from egress.proxy.request.inspection import shown_host
from egress.proxy.request.origin import connect
from egress.proxy.request.refusals import refusal_for
from egress.proxy.request.tunnel import UNRECOGNIZED_NAME, Tunnel, check_hello
from egress.proxy.state.bottle import BottleState
from egress.proxy.state.open_flows import is_allowed
from egress.proxy.state.proxy import Proxy
from egress.proxy.tls.client_hello import BadHello
from egress.proxy.tls.session import WrongName
from egress.proxy.tls.transport import TlsTransport

log = logging.getLogger(__name__)
_ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"


class InnerSession(Protocol):
    """The session of the requests inside the TLS that ends here."""

    @property
    def was_asked(self) -> bool:
        """Whether a request arrived."""

    async def run(self) -> None: ...

    def cut(self) -> None: ...


class ConnectHandler:
    def __init__(
        self,
        proxy: Proxy,
        bottle: BottleState,
        client: Connection,
        request: CurrentRequest,
        begin_inside: Callable[[Connection, str], InnerSession],
    ) -> None:
        self._proxy = proxy
        self._bottle = bottle
        self._client = client
        self._request = request
        self._record = request.record
        self._begin_inside = begin_inside
        self._under_way: Tunnel | InnerSession | None = None
        self._is_cut = False

    def cut(self) -> None:
        """The owner of the connection aborts it, too."""
        self._is_cut = True
        if self._under_way is not None:
            self._under_way.cut()

    async def run(self) -> None:
        """Serve it to its end. Raises Refusal, or Gone."""
        target = self._request.target
        assert target is not None  # noqa: S101
        if self._client.buffer:
            raise BadRequest(
                "early-data", "The request was refused: wait for the answer to CONNECT before sending."
            )
        verdict = admit_connect(self._proxy, self._bottle, target, self._record)
        if (route := tunnelled(verdict)) is not None:
            await self._tunnel(target, route)
            return
        # Most tools can show a refusal that comes from inside TLS, where method and path are known too.
        inner = await self._intercept(target.host)
        self._request.head = None  # the requests inside have records of their own
        self._under_way = inner
        await inner.run()
        if not inner.was_asked and not verdict.allowed:
            # The client spoke no HTTP/1.1 and never saw the refusal, so at least the operator has to.
            self._bottle.counters["refused"] += 1
            self._request.note_refusal(refusal_for(verdict, target, "CONNECT"))

    async def _tunnel(self, target: Target, route: Route) -> None:
        bottle, client, host = self._bottle, self._client, target.host
        request = admit_tunnel(self._proxy, bottle, target, route, self._record)
        if not bottle.uses.take(route):
            raise refusal_for(used_up(request, route), target, "CONNECT")
        upstream = await connect(self._proxy, route, host, target.port, client, bottle=bottle, tls=False)
        try:
            client.write(_ESTABLISHED)
            await check_hello(client, host, self._proxy.limits)
        except BadHello as error:
            upstream.abort()
            self._record.reason, self._record.status = "bad-hello", 200
            log.debug("bottle %s: tunnel to %s refused: %s", bottle.slug, self._shown(host), error)
            client.write(UNRECOGNIZED_NAME)
            return
        except BaseException:
            upstream.abort()
            raise
        self._record.verdict, self._record.reason, self._record.status = "allowed", "ok", 200
        tunnel = Tunnel(
            client, upstream, self._proxy.limits, self._record,
            request=request, route=route,
        )  # fmt: skip
        self._under_way = tunnel
        bottle.flows.add(tunnel)
        try:
            # The route may have been revoked meanwhile.
            if is_allowed(tunnel, bottle.snapshot, datetime.now(UTC)) and not self._is_cut:
                await tunnel.run()
            else:
                tunnel.cut()
        finally:
            bottle.flows.discard(tunnel)

    async def _intercept(self, host: str) -> InnerSession:
        """End the bottle's TLS here, with a certificate of its own CA. Raises Refusal, or Gone."""
        tls, outer = admit_inside(self._bottle, host), self._client
        if outer.transport is None or outer.ended:
            raise Gone
        outer.write(_ESTABLISHED)
        inner = Connection(outer.bell, self._proxy.watch)
        session = self._begin_inside(inner, host)
        secured = TlsTransport(tls, inner)
        secured.take_over(outer.transport)
        self._proxy.watch.discard(outer)  # it is not told of anything that happens from here on
        try:
            await secured.handshake(seconds=self._proxy.limits.handshake_seconds)
        except (OSError, TimeoutError) as error:  # ssl.SSLError is an OSError
            self._record.reason = "bad-hello" if isinstance(error, WrongName) else "bad-tls"
            log.debug("bottle %s: TLS for %s failed: %r", self._bottle.slug, self._shown(host), error)
            raise Gone from error
        finally:
            if inner.transport is None:
                outer.abort()
            outer.transport = None  # only the inner connection hears how it ends
        if self._is_cut:
            session.cut()
        return session

    def _shown(self, host: str) -> str:
        return shown_host(self._proxy.scanners.search(self._bottle), host)
