"""What one accepted connection asks for, one request at a time: parse, decide, forward or refuse.

Trust boundary: everything comes from inside a bottle. Which one is known from the socket, or from a token.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from datetime import UTC, datetime
from functools import partial

from egress.policy.decide import Request, used_up
from egress.policy.routes import Route
from egress.proxy.errors import BadRequest, Gone, Refusal
from egress.proxy.fast.fast_path import FastPath
from egress.proxy.http.heads import RequestHead, parse_request
from egress.proxy.http.proxy_auth import slug_and_token
from egress.proxy.http.reader import linger, read_head
from egress.proxy.http.targets import Target, agent_target, connect_target, forward_target, inner_target
from egress.proxy.net.connection import Connection
from egress.proxy.process.socket_passing import owner_of, pass_socket
from egress.proxy.request import builtin_endpoints
from egress.proxy.request.admission import admit, admit_connect, admit_inside, admit_tunnel, tunnelled
from egress.proxy.request.destination import Destination
from egress.proxy.request.exchange import Exchange
from egress.proxy.request.inspection import conceal, shown_host
from egress.proxy.request.origin import Origin, connect
from egress.proxy.request.refusals import answer, refusal_for
from egress.proxy.request.tunnel import UNRECOGNIZED_NAME, Tunnel, check_hello
from egress.proxy.request.web_relay import WebProcess
from egress.proxy.state.bottle import Bottle
from egress.proxy.state.connection_limits import LONG_HEAD, ConnectionSlot, stand_in_line
from egress.proxy.state.open_flows import Flow, is_allowed
from egress.proxy.state.proxy import Proxy
from egress.proxy.state.records import blank_record
from egress.proxy.tls.client_hello import BadHello
from egress.proxy.tls.session import WrongName
from egress.proxy.tls.transport import TlsTransport

log = logging.getLogger(__name__)
_ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"
_AUTHENTICATE = b'Proxy-Authenticate: Basic realm="bottle"\r\n'


class Entry(enum.Enum):
    """Where a connection came in, which decides who it is and what it may ask for."""

    PROXY_SOCKET = "proxy"
    AGENT_SOCKET = "agent"
    TCP = "tcp"


class ClientSession:
    """`inside` is the host of an opened CONNECT whose TLS ends here."""

    def __init__(
        self,
        proxy: Proxy,
        connection: Connection,
        entry: Entry,
        bottle: Bottle | None,
        inside: str | None = None,
    ) -> None:
        self._proxy = proxy
        self._connection = connection
        self._entry = entry
        self._bottle = bottle
        self._inside = inside
        self._head: RequestHead | None = None
        self._target: Target | None = None
        self._record = blank_record("")
        self._visit = ConnectionSlot(proxy, self, connection)
        self._is_cut = False
        self._under_way: Flow | ClientSession | None = None
        self._heard = False  # something was asked
        self._lane = FastPath(proxy, bottle, connection, inside) if inside and bottle else None
        if self._lane is not None:  # the first request often comes with the end of the handshake
            connection.fast_path = self._lane.take

    async def run(self) -> None:
        """Serve until either side is done. Never raises for anything a bottle or an origin does."""
        try:
            if self._bottle is None:
                self._visit.begin()
            elif self._inside is None:
                self._visit.enter(self._bottle)
            while await self._one_request():
                if self._connection.buffer and self._bottle is not None:
                    await stand_in_line(self._bottle)
        except Refusal as refusal:
            await self._refuse(refusal)
        except (Gone, asyncio.CancelledError):
            self._connection.abort()
        except Exception:
            log.exception("a connection of bottle %s ended with an error", self._slug)
            self._connection.abort()
        finally:
            await self._visit.leave()

    @property
    def by_token(self) -> bool:
        return self._entry is Entry.TCP

    def cut(self) -> None:
        self._is_cut = True
        self._connection.abort()
        if self._lane is not None:
            self._lane.cut()
        if self._under_way is not None:
            self._under_way.cut()

    @property
    def _slug(self) -> str:
        return self._bottle.slug if self._bottle is not None else ""

    async def _one_request(self) -> bool:
        self._head = self._target = None
        self._record = blank_record(self._slug)
        self._record.begin()
        try:
            raw = await self._next_head()
            if self._lane is not None and self._lane.busy:
                return await self._go_on(self._lane)
            if raw is None:
                return False
            self._heard = True
            if len(raw) > LONG_HEAD:  # before anything is made of it: reading it takes time too
                await stand_in_line(self._bottle or self._proxy.unauthenticated)
            if await self._pass_to_owner(raw):
                return False
            self._record.begin()
            self._head = parse_request(raw, max_fields=self._proxy.limits.head_fields)
            self._record.method = self._head.method
            return await self._serve(self._head)
        except Refusal as refusal:
            self._record_refusal(refusal)
            return await self._refuse(refusal)
        except Gone as gone:
            self._note_end(gone.reason)
            raise
        except asyncio.CancelledError:  # the proxy stops
            self._note_end("cut")
            raise
        finally:
            self._keep_record()

    async def _next_head(self) -> bytes | None:
        connection, lane, limits = self._connection, self._lane, self._proxy.limits
        silence = limits.head_seconds if self._bottle is None else limits.keep_alive_seconds
        if lane is not None:
            connection.fast_path = lane.take
        try:
            return await read_head(connection, limits, lambda: self._proxy.stopping, lane, silence=silence)
        finally:
            connection.fast_path = None

    async def _go_on(self, lane: FastPath) -> bool:
        assert self._bottle is not None  # noqa: S101
        handed = lane.hand_over()
        head, target, record, route = handed.head, handed.target, handed.record, handed.route
        self._head, self._record = head, record
        self._set_target(target)
        try:
            origin = Origin(self._proxy, self._bottle, target, route, head=head, record=record)
        except BaseException:  # a secret may have changed since it was sent
            handed.upstream.abort()
            raise
        exchange = Exchange(
            self._connection, head, origin, self._proxy.limits, record,
            request=target.asked_with(head.method), route=route, sent_on=handed.upstream,
        )  # fmt: skip
        if handed.is_cut:
            exchange.cut()
        return await self._run(self._bottle, exchange)

    # --- who asks, and for what

    async def _pass_to_owner(self, raw: bytes) -> bool:
        """Whether another process serves the bottle that this claims to be, and has the connection now.

        Only as it begins: later the bottle is known, and a request in another one's name is refused. What
        else the head says, and whether it makes sense at all, is for that process to find out.
        """
        if self._entry is not Entry.TCP or self._bottle is not None or not self._proxy.neighbours:
            return False
        owner = owner_of(self._proxy.config, raw)
        if owner == self._proxy.config.number:
            return False
        await pass_socket(self._proxy, owner, self._connection, raw)
        return True

    async def _serve(self, head: RequestHead) -> bool:
        bottle = self._identify(head)
        self._record.bottle = bottle.slug
        if self._is_cut:  # what had arrived before is not served either
            raise Gone
        self._record.table_version = bottle.snapshot.version
        bottle.counters["requests"] += 1
        if self._entry is Entry.AGENT_SOCKET:
            return await self._relay(bottle, head, agent_target(head))
        if head.method == "CONNECT" and self._inside is None:
            return await self._connect(bottle, head)
        if self._inside is not None:
            target = inner_target(head, "https", self._inside, 443)
        else:
            target = forward_target(head)
        self._set_target(target)
        if target.is_ours:
            return await self._serve_ourselves(bottle, head, target)
        return await self._forward(bottle, head, target)

    def _identify(self, head: RequestHead) -> Bottle:
        if self._entry is not Entry.TCP or self._inside is not None:
            assert self._bottle is not None  # noqa: S101  (a socket, or the CONNECT around us, named it)
            return self._bottle
        slug, token = slug_and_token(head.single.get(b"proxy-authorization", b""))
        bottle = self._proxy.bottle_with_token(slug, token)
        if bottle is None or self._bottle not in (None, bottle):
            raise Refusal("who", "Send Proxy-Authorization: Basic with the bottle's slug and token.", 407)
        self._bottle = bottle
        self._visit.enter(bottle)
        return bottle

    def _set_target(self, target: Target) -> None:
        self._target = target
        self._record.scheme, self._record.host, self._record.path = target.scheme, target.host, target.path

    async def _serve_ourselves(self, bottle: Bottle, head: RequestHead, target: Target) -> bool:
        if target.host == builtin_endpoints.NAME and target.port == 80:
            self._record.verdict, self._record.status = "local", 200
            response = builtin_endpoints.answer(self._proxy, bottle, head, target, self._record)
            if head.length:
                raise BadRequest("bad-body", f"{builtin_endpoints.NAME} takes no request body.")
            if self._record.verdict == "refused":  # what was asked about
                bottle.counters["refused"] += 1
            self._connection.write(response)
            return head.keeps_alive
        if target.host == builtin_endpoints.NAME or target.port not in (
            80,
            self._proxy.config.supervise_port,
        ):
            raise BadRequest("port", f"Use http://{target.host}/ without a port.")
        return await self._relay(bottle, head, target)

    # --- plain and inspected requests

    async def _forward(self, bottle: Bottle, head: RequestHead, target: Target) -> bool:
        origin = admit(self._proxy, bottle, head, target, self._record)
        request, route = target.asked_with(head.method), origin.route
        if not bottle.uses.take(route):
            raise refusal_for(used_up(request, route), target, request.method)
        return await self._exchange(bottle, head, origin, request, route)

    async def _exchange(
        self,
        bottle: Bottle,
        head: RequestHead,
        destination: Destination,
        request: Request,
        route: Route | None,
    ) -> bool:
        limits, record = self._proxy.limits, self._record
        exchange = Exchange(self._connection, head, destination, limits, record, request=request, route=route)
        record.verdict, record.reason = "allowed", "ok"
        return await self._run(bottle, exchange)

    async def _run(self, bottle: Bottle, exchange: Exchange) -> bool:
        self._under_way = exchange
        if exchange.route is not None:  # or else to the web process, which no table can take away
            bottle.flows.add(exchange)
        try:
            again = await exchange.run()
            if exchange.left_a_body:
                await linger(self._connection)
            return again
        finally:
            self._under_way = None
            bottle.flows.discard(exchange)

    async def _relay(self, bottle: Bottle, head: RequestHead, target: Target) -> bool:
        self._set_target(target)
        if not bottle.identity.supervise:
            raise Refusal("no-supervisor", "This bottle has nobody to ask: its manifest says so.")
        socket = self._proxy.config.run / "relay.sock"
        begin = partial(self._proxy.turns.begin, bottle)
        web = WebProcess(socket, bottle.slug, target.origin_form, self._proxy.watch, begin)
        return await self._exchange(bottle, head, web, target.asked_with(head.method), None)

    # --- CONNECT

    async def _connect(self, bottle: Bottle, head: RequestHead) -> bool:
        target = connect_target(head)
        self._set_target(target)
        if self._connection.buffer:
            raise BadRequest(
                "early-data", "The request was refused: wait for the answer to CONNECT before sending."
            )
        verdict = admit_connect(self._proxy, bottle, target, self._record)
        if (route := tunnelled(verdict)) is not None:
            await self._tunnel(bottle, target, route)
        # A refusal that most tools can show comes from inside TLS, where method and path are known too.
        elif not await self._look_inside(bottle, target.host) and not verdict.allowed:
            # It spoke no HTTP/1.1 and never saw the refusal, so at least the operator has to.
            bottle.counters["refused"] += 1
            self._record_refusal(refusal_for(verdict, target, "CONNECT"))
        return False

    def _record_refusal(self, refusal: Refusal) -> None:
        self._record.verdict = "refused" if refusal.is_ours else "allowed"
        self._record.reason, self._record.status = refusal.reason, refusal.status
        self._record.ask = refusal.ask

    def _note_end(self, reason: str) -> None:
        """Of a request that was not brought to its end, unless more is known of it already."""
        if self._head is not None and self._record.reason in ("", "ok"):
            self._record.reason = "cut" if self._is_cut else reason

    async def _tunnel(self, bottle: Bottle, target: Target, route: Route) -> None:
        host, port = target.host, target.port
        request = admit_tunnel(self._proxy, bottle, target, route, self._record)
        if not bottle.uses.take(route):
            raise refusal_for(used_up(request, route), target, "CONNECT")
        upstream = await connect(self._proxy, route, host, port, self._connection, bottle=bottle, tls=False)
        try:
            self._connection.write(_ESTABLISHED)
            await check_hello(self._connection, host, self._proxy.limits)
        except BadHello as error:
            upstream.abort()
            self._record.reason, self._record.status = "bad-hello", 200
            shown = shown_host(self._proxy.scanners.search(bottle), host)
            log.debug("bottle %s: tunnel to %s refused: %s", bottle.slug, shown, error)
            self._connection.write(UNRECOGNIZED_NAME)
            return
        except BaseException:
            upstream.abort()
            raise
        self._record.verdict, self._record.reason, self._record.status = "allowed", "ok", 200
        tunnel = Tunnel(
            self._connection, upstream, self._proxy.limits, self._record,
            request=request, route=route, pipes=bottle.pipes,
        )  # fmt: skip
        self._under_way = tunnel
        bottle.flows.add(tunnel)
        try:
            # It may have been revoked meanwhile.
            if is_allowed(tunnel, bottle.snapshot, datetime.now(UTC)) and not self._is_cut:
                await tunnel.run()
            else:
                tunnel.cut()
        finally:
            bottle.flows.discard(tunnel)

    async def _look_inside(self, bottle: Bottle, host: str) -> bool:
        """End the bottle's TLS here, with a certificate of its own CA, and serve the requests inside.

        False when there were none.
        """
        session, outer = admit_inside(bottle, host), self._connection
        if outer.transport is None or outer.ended:
            raise Gone
        outer.write(_ESTABLISHED)
        inner = Connection(outer.bell, self._proxy.watch)
        conversation = ClientSession(self._proxy, inner, self._entry, bottle, inside=host)
        secured = TlsTransport(session, inner)
        secured.take_over(outer.transport)
        self._proxy.watch.discard(outer)  # which is told nothing of what happens from here on
        try:
            await secured.handshake(seconds=self._proxy.limits.handshake_seconds)
        except (OSError, TimeoutError) as error:  # ssl.SSLError is an OSError
            self._record.reason = "bad-hello" if isinstance(error, WrongName) else "bad-tls"
            shown = shown_host(self._proxy.scanners.search(bottle), host)
            log.debug("bottle %s: TLS for %s failed: %r", bottle.slug, shown, error)
            raise Gone from error
        finally:
            if inner.transport is None:
                outer.abort()
            outer.transport = None  # how it ends is told to the inner wire, or to nobody
        if self._is_cut:
            conversation.cut()
            raise Gone
        self._head = None  # the requests inside have records of their own
        self._under_way = conversation
        await conversation.run()
        return conversation.was_heard

    @property
    def was_heard(self) -> bool:
        return self._heard or (self._lane is not None and self._lane.served)

    # --- refusing

    async def _refuse(self, refusal: Refusal) -> bool:
        """Answer, and go on only when it is certain where the next request begins."""
        head, connection = self._head, self._connection
        if self._bottle is not None:
            self._bottle.counters["refused"] += 1
        again = refusal.status in (403, 404) and head is not None and head.keeps_alive and head.length == 0
        extra = _AUTHENTICATE if refusal.status == 407 else b""
        connection.sink = None
        connection.write(answer(refusal, head=head, target=self._target, close=not again, extra=extra))
        if not again:
            await linger(self._connection)
        return again

    def _keep_record(self) -> None:
        if self._head is not None or self._record.reason:
            if self._bottle is not None and not self._record.url_is_clean:
                conceal(self._proxy.scanners.search(self._bottle), self._record)
            self._proxy.records.add(self._record)
