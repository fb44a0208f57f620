"""An origin on the internet as the destination of one request that a route allows."""

from __future__ import annotations

from egress.routes import Dlp, Route

from .bottles import Bottle
from .credentials import credential_field, is_credential, refuse_credential_in_url
from .dialing import checked_addresses, dial
from .errors import Refusal
from .exchange import Trailers, request_bytes
from .head import Field, RequestHead, ResponseHead
from .inspection import Inspection
from .plane import DataPlane
from .records import Record
from .targets import Target
from .upstream import Key, open_wire
from .wire import Doorbell, Wire

# Frameworks let these change the method after it was checked.
_METHOD_OVERRIDES = frozenset({b"x-http-method-override", b"x-http-method", b"x-method-override"})
_UNSEARCHED = Dlp(out=False)
_IDENTITY_CODING: Field = (b"accept-encoding", b"Accept-Encoding", b"identity")


async def connect(plane: DataPlane, route: Route, host: str, port: int, bell: Doorbell, *, tls: bool) -> Wire:
    """A new connection to an address that was checked for this route. Raises Unreachable."""
    limits = plane.limits
    addresses = await checked_addresses(host, route, plane.lookup, seconds=limits.connect_seconds)
    if route.pinned_addresses:
        port = plane.config.pinned_ports.get(port, port)
    connection = await dial(addresses, port, seconds=limits.connect_seconds)
    context = plane.upstream_tls if tls else None
    return await open_wire(
        connection, bell, plane.watch, tls=context, host=host, seconds=limits.handshake_seconds
    )


class Origin:
    """Raises Refusal when the route's credential cannot be had, or when the head must not leave."""

    def __init__(
        self,
        plane: DataPlane,
        bottle: Bottle,
        target: Target,
        route: Route,
        *,
        head: RequestHead,
        record: Record,
    ) -> None:
        self._plane = plane
        self._bottle = bottle
        self._target = target
        self._route = route
        self._key: Key = (target.scheme, target.host, route.pinned_addresses)
        self._secret = self._credential()
        self._inspection = Inspection(plane.scanners.scanner(bottle, self._secret), route, record)
        self._fields = self._own_fields(head)
        self._inspection.check_request(target, head, self._fields)

    def _credential(self) -> str | None:
        auth = self._route.auth
        if auth is None:
            return None
        refuse_credential_in_url(self._target.origin_form)
        secret = self._plane.secrets.lookup(auth.token_ref)
        if secret is None:
            self._bottle.missing_secrets.add(auth.token_ref)
            raise Refusal(
                "credential-missing",
                f"The credential for {self._target.host} is not set up. Tell the operator.",
                502,
            )
        self._bottle.missing_secrets.discard(auth.token_ref)
        return secret

    def _own_fields(self, head: RequestHead) -> list[Field]:
        """What the agent sent that travels on."""
        fields = head.end_to_end()
        if self._route.methods:
            fields = [entry for entry in fields if entry[0].replace(b"_", b"-") not in _METHOD_OVERRIDES]
        if (auth := self._route.auth) is not None:
            fields = [entry for entry in fields if not is_credential(entry[0], auth)]
        if auth is not None or self._route.dlp.incoming:
            # An answer can only be searched and cleaned when it can be read.
            fields = [entry for entry in fields if entry[0] != b"accept-encoding"] + [_IDENTITY_CODING]
        if head.wants_websocket and (auth is not None or self._route.dlp != _UNSEARCHED):
            fields = [entry for entry in fields if entry[0] != b"sec-websocket-extensions"]  # or compressed
        return fields

    def request_head(self, head: RequestHead) -> bytes:
        fields = self._fields
        if self._route.auth is not None and self._secret is not None:
            fields = [*fields, credential_field(self._route.auth, self._secret)]
        return request_bytes(head, self._target.origin_form, self._target.host.encode("ascii"), fields)

    def answer_fields(self, head: ResponseHead) -> list[Field]:
        fields = head.end_to_end()
        if self._route.auth is not None:  # a session made with our credential is a credential too
            fields = [entry for entry in fields if entry[0] != b"set-cookie"]
        return self._inspection.answer(head, fields)

    def reuse(self, bell: Doorbell, *, repeatable: bool) -> Wire | None:
        return self._bottle.pool.take(self._key, bell, repeatable=repeatable)

    async def open(self, bell: Doorbell) -> Wire:
        target = self._target
        return await connect(
            self._plane, self._route, target.host, target.port, bell, tls=target.scheme == "https"
        )

    def give_back(self, wire: Wire) -> None:
        self._bottle.pool.give_back(self._key, wire)

    @property
    def reads_ahead(self) -> bool:
        return self._inspection.reads_ahead

    def outgoing(self, payload: bytes, *, last: bool) -> bytes:
        return self._inspection.outgoing(payload, last=last)

    def incoming(self, payload: bytes, *, last: bool) -> bytes:
        return self._inspection.incoming(payload, last=last)

    def trailers(self, trailers: Trailers, *, leaving: bool) -> Trailers:
        auth = self._route.auth
        if auth is not None:
            trailers = [trailer for trailer in trailers if not is_credential(trailer[0].lower(), auth)]
        if leaving:
            self._inspection.check_trailers(trailers)
            return trailers
        return self._inspection.clean_trailers(trailers)
