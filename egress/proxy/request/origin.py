"""An origin on the internet as the destination of one request that a route allows."""

from __future__ import annotations

import socket
from datetime import UTC, datetime
from hashlib import sha256

from egress.dlp.scanner import Steps
from egress.policy.decide import PORTS, Request
from egress.policy.routes import Route
from egress.proxy.config import Gateway
from egress.proxy.credentials.secrets import credential_field, is_credential, refuse_credential_in_url
from egress.proxy.credentials.sigv4 import EMPTY_DIGEST, AwsKey, SignedRequest, hashes_the_body, sign
from egress.proxy.errors import Refusal
from egress.proxy.http.heads import Field, RequestHead, ResponseHead, folded
from egress.proxy.http.override_headers import without_overrides
from egress.proxy.http.targets import Target
from egress.proxy.http.writer import request_bytes
from egress.proxy.net.connection import Connection
from egress.proxy.net.dialing import checked_addresses, dial
from egress.proxy.net.fair_scheduler import Step
from egress.proxy.net.pool import Key
from egress.proxy.request.destination import Trailers
from egress.proxy.request.inspection import WEBSOCKET_EXTENSIONS, Inspection, unsearchable
from egress.proxy.request.upstream_proxy import connect_through, reach
from egress.proxy.state.bottle import BottleState
from egress.proxy.state.memory import MemoryReservation
from egress.proxy.state.proxy import Proxy
from egress.proxy.state.records import Record
from egress.proxy.tls.connect import open_connection

# An answer can only be searched and cleaned when it can be read, and when it is whole.
_CODED_OR_IN_PART = frozenset({b"accept-encoding", b"range", b"if-range", b"request-range", b"x-ms-range"})
_IDENTITY_CODING: Field = (b"accept-encoding", b"Accept-Encoding", b"identity")


async def connect(
    proxy: Proxy, route: Route, host: str, port: int, client: Connection, *, bottle: BottleState, tls: bool
) -> Connection:
    """A new connection to an address that was checked for this route. Raises Refusal."""
    limits = proxy.limits
    sock = await _socket(proxy, bottle, route, host, port)
    context = proxy.upstream_tls if tls else None
    return await open_connection(
        sock, client, proxy.watch, tls=context, host=host, seconds=limits.handshake_seconds
    )


async def _socket(proxy: Proxy, bottle: BottleState, route: Route, host: str, port: int) -> socket.socket:
    limits = proxy.limits
    gateway = _gateway_for(proxy, route)
    if gateway is not None:
        if port == PORTS["http"]:  # it takes plain requests whole
            return await reach(gateway, seconds=limits.connect_seconds)
        return await connect_through(gateway, host, port, seconds=limits.connect_seconds)
    lookup = proxy.resolver.lookup_for(bottle)
    addresses = await checked_addresses(
        host, route, lookup,
        seconds=limits.connect_seconds, forbidden=proxy.config.forbidden_networks, nat64=proxy.config.nat64,
    )  # fmt: skip
    if route.pinned_addresses:
        port = proxy.config.pinned_ports.get(port, port)
    return await dial(addresses, port, seconds=limits.connect_seconds)


def _gateway_for(proxy: Proxy, route: Route) -> Gateway | None:
    """The operator's proxy, or None: pinned addresses are the operator's own and are dialled directly."""
    return None if route.pinned_addresses else proxy.config.gateway


class Origin:
    """Raises Refusal when the route's credential is not available, or when the head must not leave."""

    def __init__(
        self,
        proxy: Proxy,
        bottle: BottleState,
        target: Target,
        route: Route,
        *,
        head: RequestHead,
        request: Request,
        record: Record,
    ) -> None:
        self._proxy = proxy
        self.bottle = bottle
        self.target = target
        self.request = request
        self.route = route
        self._key: Key = (target.scheme, target.host, route.pinned_addresses)
        self._record = record
        self._hold = MemoryReservation(bottle, proxy.limits.held_bytes)
        self._prepare(head)
        self._body_digest = EMPTY_DIGEST if self.needs_whole_body else ""

    @property
    def inspected(self) -> Origin:
        return self

    def _prepare(self, head: RequestHead) -> None:
        self._secret = self._credential()
        self._aws_key = self._parsed_aws_key()
        search = self._proxy.scanners.search(self.bottle, self._secret)
        if search.handed.problem and self.route.dlp.searches_requests:
            raise unsearchable(self._record)
        self._inspection = Inspection(search.scanner, self.route, self._record, self._hold)
        self._fields = self._own_fields(head)
        self._inspection.check_request(self.target, head, self._fields)

    def _credential(self) -> str | None:
        auth = self.route.auth
        if auth is None:
            return None
        refuse_credential_in_url(self.target.origin_form)
        secret = self._proxy.secrets.lookup(auth.token_ref)
        if secret is None:
            raise Refusal(
                "credential-missing",
                f"The credential for {self.target.host} is not set up. Tell the operator.",
                502,
            )
        return secret

    def _parsed_aws_key(self) -> AwsKey | None:
        auth = self.route.auth
        if auth is None or self._secret is None or auth.scheme != "SigV4":
            return None
        key = AwsKey.parse(self._secret)
        if key is None:
            raise Refusal("credential-missing", "The key for AWS is not set up. Tell the operator.", 502)
        return key

    @property
    def needs_whole_body(self) -> bool:
        """The signature covers the body, so nothing can be sent before all of it is here."""
        return self._aws_key is not None and hashes_the_body(self.target.host)

    def take_body(self, head: RequestHead, body: bytes) -> None:
        """Look everything up again: the key may have been removed while the body arrived. Raises Refusal."""
        self._prepare(head)
        self._body_digest = sha256(body).hexdigest()

    def _own_fields(self, head: RequestHead) -> list[Field]:
        """The agent's own fields that travel on."""
        fields = without_overrides(head, self.route)
        if (auth := self.route.auth) is not None:
            fields = [entry for entry in fields if not is_credential(entry[0], auth)]
        if auth is not None or self.route.dlp.incoming:
            fields = [entry for entry in fields if folded(entry[0]) not in _CODED_OR_IN_PART]
            fields.append(_IDENTITY_CODING)
        if head.wants_websocket and self._inspection.reads_frames:
            # Without extensions the frames are not compressed.
            fields = [entry for entry in fields if folded(entry[0]) != WEBSOCKET_EXTENSIONS]
        return fields

    def request_head(self, head: RequestHead) -> bytes:
        host, form = self.target.host.encode("ascii"), self.target.origin_form
        if self.target.scheme == "http" and _gateway_for(self._proxy, self.route) is not None:
            form = b"http://" + host + form
        return request_bytes(head, form, host, self._with_credential(head.method))

    def _with_credential(self, method: str) -> list[Field]:
        auth, target = self.route.auth, self.target
        if self._aws_key is not None:
            request = SignedRequest(method, target.host, target.origin_form)
            return sign(request, self._fields, self._aws_key, self._body_digest, datetime.now(UTC))
        if auth is not None and self._secret is not None:
            return [*self._fields, credential_field(auth, self._secret)]
        return self._fields

    def answer_fields(self, head: ResponseHead) -> list[Field]:
        fields = head.travelling
        if self.route.auth is not None:  # a session made with our credential is a credential too
            fields = [entry for entry in fields if entry[0] != b"set-cookie"]
        return self._inspection.answer(head, fields)

    def reuse(self, client: Connection, *, repeatable: bool) -> Connection | None:
        return self.bottle.pool.take(self._key, client, repeatable=repeatable)

    async def open(self, client: Connection) -> Connection:
        target = self.target
        return await connect(
            self._proxy, self.route, target.host, target.port, client,
            bottle=self.bottle, tls=target.scheme == "https",
        )  # fmt: skip

    def reserve(self, size: int) -> None:
        self._hold.keep("body", size)

    def release(self) -> None:
        self._hold.release()

    def return_connection(self, connection: Connection) -> None:
        self.bottle.pool.return_connection(self._key, connection)

    @property
    def reads_ahead(self) -> bool:
        return self._inspection.reads_ahead

    def begin(self, step: Step) -> None:
        self._proxy.turns.begin(self.bottle, step)

    def outgoing(self, payload: bytes, *, last: bool) -> Steps:
        return self._inspection.outgoing(payload, last=last)

    @property
    def passes_on(self) -> bool:
        return self._inspection.passes_on

    def incoming(self, payload: bytes, *, last: bool) -> Steps:
        return self._inspection.incoming(payload, last=last)

    def trailers(self, trailers: Trailers, *, leaving: bool) -> Trailers:
        auth = self.route.auth
        if auth is not None:
            trailers = [trailer for trailer in trailers if not is_credential(trailer[0].lower(), auth)]
        if leaving:
            self._inspection.check_trailers(trailers)
            return trailers
        return self._inspection.clean_trailers(trailers)
