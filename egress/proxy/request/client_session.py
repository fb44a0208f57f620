"""Serves the requests of one accepted connection, one at a time: parse, decide, forward or refuse.

Trust boundary: everything comes from inside a bottle. Which one is known from the socket, or from a token.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from egress.policy.decide import used_up
from egress.proxy.errors import Gone, Refusal
from egress.proxy.http.heads import RequestHead
from egress.proxy.http.proxy_auth import slug_and_token
from egress.proxy.http.reader import linger, read_head
from egress.proxy.http.targets import Target, agent_target, connect_target, forward_target, inner_target
from egress.proxy.net.connection import Connection
from egress.proxy.request import builtin_endpoints
from egress.proxy.request.admission import CurrentRequest, admit
from egress.proxy.request.connect_handler import ConnectHandler
from egress.proxy.request.destination import Destination
from egress.proxy.request.exchange import Exchange
from egress.proxy.request.origin import Origin
from egress.proxy.request.refusals import answer, refusal_for
from egress.proxy.request.session_hooks import Entry, FastPath, PassToOwner
from egress.proxy.request.web_relay import WebProcess
from egress.proxy.state.bottle import BottleState
from egress.proxy.state.connection_limits import LONG_HEAD, ConnectionSlot, stand_in_line
from egress.proxy.state.proxy import Proxy

log = logging.getLogger(__name__)
_AUTHENTICATE = b'Proxy-Authenticate: Basic realm="bottle"\r\n'
# Makes the fast path of a session, for what arrives on this connection.
FastPaths = Callable[["ClientSession", Connection, BottleState], FastPath]


class ClientSession:
    """`inside` is the host of an opened CONNECT whose TLS ends here."""

    def __init__(
        self,
        proxy: Proxy,
        connection: Connection,
        entry: Entry,
        bottle: BottleState | None,
        *,
        inside: str | None = None,
        fast_paths: FastPaths | None = None,
        pass_to_owner: PassToOwner | None = None,
    ) -> None:
        self._proxy = proxy
        self._connection = connection
        self._entry = entry
        self._bottle = bottle
        self._inside = inside
        self._fast_paths = fast_paths
        self._pass_to_owner = pass_to_owner  # until the first head is here
        self._slot = ConnectionSlot(self, connection, proxy.unauthenticated, proxy.limits.connections)
        self._is_cut = False
        self._under_way: Exchange | ConnectHandler | None = None
        self.was_asked = False
        self._fast_path: FastPath | None = None
        self.request = CurrentRequest(proxy, bottle)
        if fast_paths is not None and inside is not None and bottle is not None:
            self._fast_path = fast_paths(self, connection, bottle)
            connection.fast_path = self._fast_path.take  # a request may come with the end of the handshake

    async def run(self) -> None:
        """Serve until either side is done. Never raises for anything a bottle or an origin does."""
        try:
            if self._bottle is None:
                self._slot.begin()
            elif self._inside is None:
                self._slot.enter(self._bottle)
            while await self._one_request():
                if self._connection.buffer and self._bottle is not None:
                    await stand_in_line(self._bottle)
        except Refusal as refusal:
            await self._refuse(refusal)
        except (Gone, asyncio.CancelledError):
            self._connection.abort()
        except Exception:
            log.exception("a connection of bottle %s ended with an error", self.request.record.bottle)
            self._connection.abort()
        finally:
            await self._slot.leave()

    @property
    def by_token(self) -> bool:
        return self._entry is Entry.TCP

    def cut(self) -> None:
        self._is_cut = True
        self._connection.abort()
        for part in (self._fast_path, self._under_way):
            if part is not None:
                part.cut()

    def end_request(self) -> None:
        """Keep its record, and be ready for the next one."""
        self.request.keep_record(self._bottle)
        self.request = CurrentRequest(self._proxy, self._bottle)

    async def _one_request(self) -> bool:
        try:
            raw = await self._next_head()
            if self._fast_path is not None and self._fast_path.is_busy:
                return await self._forward(*self._fast_path.release())
            if raw is None:
                return False
            if len(raw) > LONG_HEAD:  # before parsing it, which takes time too
                await stand_in_line(self._bottle or self._proxy.unauthenticated)
            pass_to_owner, self._pass_to_owner = self._pass_to_owner, None
            if pass_to_owner is not None and await pass_to_owner(self._connection, raw):
                return False
            return await self._serve(raw)
        except Refusal as refusal:
            self.request.note_refusal(refusal)
            return await self._refuse(refusal)
        except Gone as gone:
            self.request.note_end("cut" if self._is_cut else gone.reason)
            raise
        except asyncio.CancelledError:  # the proxy stops
            self.request.note_end("cut")
            raise
        finally:
            self.end_request()

    async def _next_head(self) -> bytes | None:
        connection, fast_path, proxy = self._connection, self._fast_path, self._proxy
        silence = proxy.limits.head_seconds if self._bottle is None else proxy.limits.keep_alive_seconds
        if fast_path is not None:
            connection.fast_path = fast_path.take
        try:
            return await read_head(
                connection, proxy.limits, lambda: proxy.stopping, fast_path, silence=silence
            )
        finally:
            connection.fast_path = None

    async def _serve(self, raw: bytes) -> bool:
        if self._inside is not None:
            return await self._forward(self.admit(raw))
        head = self.request.parse(raw)
        bottle = self._identify(head)
        if self._entry is Entry.AGENT_SOCKET:
            return await self._relay(bottle, head, agent_target(head))
        if head.method == "CONNECT":
            return await self._connect(bottle, head)
        target = forward_target(head)
        self.request.set_target(target)
        if not target.is_ours:
            return await self._forward(admit(self._proxy, bottle, head, target, self.request.record))
        response = builtin_endpoints.answer(self._proxy, bottle, head, target, self.request.record)
        if response is None:
            return await self._relay(bottle, head, target)
        self._connection.write(response)
        return head.keeps_alive

    def admit(self, raw: bytes) -> Origin:
        """Parse, decide on and search a request inside TLS. Raises Refusal, or Gone."""
        assert self._inside is not None  # noqa: S101
        self.was_asked = True
        head = self.request.parse(raw)
        bottle = self._identify(head)
        target = inner_target(head, "https", self._inside, 443)
        self.request.set_target(target)
        return admit(self._proxy, bottle, head, target, self.request.record)

    def _identify(self, head: RequestHead) -> BottleState:
        bottle = self._bottle  # known from the socket, or from the CONNECT around us
        if self._entry is Entry.TCP and self._inside is None:
            slug, token = slug_and_token(head.single.get(b"proxy-authorization", b""))
            bottle = self._proxy.bottles.with_token(slug, token)
        if bottle is None or self._bottle not in (None, bottle):
            raise Refusal("who", "Send Proxy-Authorization: Basic with the bottle's slug and token.", 407)
        if self._bottle is None:
            self._bottle = bottle
            self._slot.enter(bottle)
        self.request.record.bottle = bottle.slug
        if self._is_cut:  # requests that had arrived before are not served
            raise Gone
        self.request.record.table_version = bottle.snapshot.version
        bottle.counters["requests"] += 1
        return bottle

    async def _forward(self, origin: Origin, sent_on: Connection | None = None) -> bool:
        request, route = origin.request, origin.route
        if not origin.bottle.uses.take(route):
            raise refusal_for(used_up(request, route), origin.target, request.method)
        return await self._exchange(origin.bottle, origin, sent_on)

    async def _relay(self, bottle: BottleState, head: RequestHead, target: Target) -> bool:
        self.request.set_target(target)
        if not bottle.identity.supervise:
            raise Refusal("no-supervisor", "This bottle has nobody to ask: its manifest says so.")
        socket = self._proxy.config.run / "relay.sock"
        begin = partial(self._proxy.turns.begin, bottle)
        web = WebProcess(socket, bottle.slug, target, head.method, watch=self._proxy.watch, begin=begin)
        return await self._exchange(bottle, web)

    async def _exchange(
        self, bottle: BottleState, destination: Destination, sent_on: Connection | None = None
    ) -> bool:
        self.request.note_allowed()
        head, limits, record = self.request.head, self._proxy.limits, self.request.record
        assert head is not None  # noqa: S101
        exchange = Exchange(self._connection, head, destination, limits, record, sent_on=sent_on)
        self._under_way = exchange
        if destination.route is not None:  # a revoke can cut it
            bottle.flows.add(exchange)
        try:
            again = await exchange.run()
            if exchange.left_a_body:
                await linger(self._connection)
            return again
        finally:
            self._under_way = None
            bottle.flows.discard(exchange)

    async def _connect(self, bottle: BottleState, head: RequestHead) -> bool:
        self.request.set_target(connect_target(head))
        handler = ConnectHandler(self._proxy, bottle, self._connection, self.request, self._begin_inside)
        self._under_way = handler
        await handler.run()
        return False

    def _begin_inside(self, connection: Connection, host: str) -> ClientSession:
        return ClientSession(
            self._proxy, connection, self._entry, self._bottle, inside=host, fast_paths=self._fast_paths
        )

    # --- refusing

    async def _refuse(self, refusal: Refusal) -> bool:
        """Answer, and continue only when it is certain where the next request begins."""
        head, target, connection = self.request.head, self.request.target, self._connection
        if self._bottle is not None:
            self._bottle.counters["refused"] += 1
        again = refusal.status in (403, 404) and head is not None and head.keeps_alive and head.length == 0
        extra = _AUTHENTICATE if refusal.status == 407 else b""
        connection.sink = None
        connection.write(answer(refusal, head=head, target=target, close=not again, extra=extra))
        if not again:
            await linger(self._connection)
        return again
