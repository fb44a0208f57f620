"""Where a decided request goes, an origin or the web process: all that an exchange knows of it."""

from __future__ import annotations

from typing import Protocol

from egress.dlp.scanner import Steps
from egress.proxy.http.heads import Field, RequestHead, ResponseHead
from egress.proxy.net.connection import Connection
from egress.proxy.net.fair_scheduler import Step

Trailers = list[tuple[bytes, bytes]]


class Destination(Protocol):
    @property
    def needs_whole_body(self) -> bool:
        """Whether the head depends on the body, so that nothing can be sent before all of it is here."""

    def take_body(self, head: RequestHead, body: bytes) -> None:
        """The whole body, and the head that it now has. Raises Refusal."""

    def request_head(self, head: RequestHead) -> bytes:
        """Exactly what is sent before the body."""

    def answer_fields(self, head: ResponseHead) -> list[Field]: ...

    def reuse(self, client: Connection, *, repeatable: bool) -> Connection | None: ...

    async def open(self, client: Connection) -> Connection:
        """Raises Refusal."""

    def give_back(self, connection: Connection) -> None: ...

    def keep(self, size: int) -> None:
        """So much of the body is held in memory. Raises Refusal."""

    def let_go(self) -> None:
        """Nothing is held any more."""

    @property
    def reads_ahead(self) -> bool:
        """Whether the body may begin to leave only once `outgoing` lets it."""

    def begin(self, step: Step) -> None:
        """Begin long work, in turn with that for others."""

    def outgoing(self, payload: bytes, *, last: bool) -> Steps:
        """What of the body (or, after an upgrade, of the stream) may leave now. Raises Refusal."""

    @property
    def passes_on(self) -> bool:
        """Whether `incoming` leaves this answer as it is. Known with the head of the answer."""

    def incoming(self, payload: bytes, *, last: bool) -> Steps:
        """What of the answer may be passed on now. Raises Refusal."""

    def trailers(self, trailers: Trailers, *, leaving: bool) -> Trailers:
        """Those that may travel on. Raises Refusal."""
