"""What an exchange needs to know of the place where its request goes: an origin, or the web process."""

from __future__ import annotations

from typing import Protocol

from egress.dlp.scanner import Steps
from egress.policy.decide import Request
from egress.policy.routes import Route
from egress.proxy.http.heads import Field, RequestHead, ResponseHead
from egress.proxy.net.connection import Connection
from egress.proxy.net.fair_scheduler import Step, unchanged

Trailers = list[tuple[bytes, bytes]]


class InspectedDestination(Protocol):
    """Inspects and changes messages on their way. Every method that takes a part of one may raise Refusal."""

    @property
    def needs_whole_body(self) -> bool:
        """Whether the head depends on the body, so that nothing can be sent before all of it is here."""

    def take_body(self, head: RequestHead, body: bytes) -> None:
        """Take the whole body, and the head that fits it."""

    @property
    def reads_ahead(self) -> bool:
        """Whether the body may begin to leave only once `outgoing` lets it."""

    def outgoing(self, payload: bytes, *, last: bool) -> Steps:
        """The part of the body (or, after an upgrade, of the stream) that may leave now."""

    @property
    def passes_on(self) -> bool:
        """Whether `incoming` leaves this answer as it is. Known with the head of the answer."""

    def incoming(self, payload: bytes, *, last: bool) -> Steps:
        """The part of the answer that may be passed on now."""

    def trailers(self, trailers: Trailers, *, leaving: bool) -> Trailers:
        """The trailers that may travel on."""

    def reserve(self, size: int) -> None:
        """Count `size` bytes of the body as held in memory."""

    def release(self) -> None:
        """Free what was reserved."""


class Uninspected:
    """Bodies pass as they are, without trailers."""

    needs_whole_body = reads_ahead = False
    passes_on = True

    def take_body(self, head: RequestHead, body: bytes) -> None:
        raise AssertionError("the head does not depend on the body")

    def outgoing(self, payload: bytes, *, last: bool) -> Steps:
        return unchanged(payload)

    incoming = outgoing

    def trailers(self, trailers: Trailers, *, leaving: bool) -> Trailers:
        return []

    def reserve(self, size: int) -> None:
        raise AssertionError("no body is read whole")

    def release(self) -> None:
        pass


class Destination(Protocol):
    @property
    def request(self) -> Request: ...

    @property
    def route(self) -> Route | None:
        """None for the web process, which no table can take away."""

    @property
    def inspected(self) -> InspectedDestination: ...

    def request_head(self, head: RequestHead) -> bytes:
        """Exactly what is sent before the body."""

    def answer_fields(self, head: ResponseHead) -> list[Field]: ...

    def reuse(self, client: Connection, *, repeatable: bool) -> Connection | None: ...

    async def open(self, client: Connection) -> Connection:
        """Raises Refusal."""

    def return_connection(self, connection: Connection) -> None: ...

    def begin(self, step: Step) -> None:
        """Begin long work, taking turns with other bottles."""
