"""An upgraded connection: bytes both ways, inspected as they pass, until one side ends it.

Trust boundary: both sides are hostile, and only the idle time ends a stream that neither of them does.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

from egress.proxy.config import Limits
from egress.proxy.errors import Refusal
from egress.proxy.net.connection import Connection
from egress.proxy.net.fair_scheduler import result
from egress.proxy.request.destination import Destination
from egress.proxy.state.records import Record


class Upgraded:
    def __init__(
        self,
        client: Connection,
        upstream: Connection,
        destination: Destination,
        limits: Limits,
        record: Record,
    ) -> None:
        self._client = client
        self._upstream = upstream
        self._begin = destination.begin
        self._inspected = destination.inspected
        self._idle_seconds = limits.tunnel_idle_seconds
        self._record = record
        self._failure: Refusal | None = None

    async def run(self, check: Callable[[], None]) -> None:
        """Raises Refusal for what must not pass, and what `check` raises, called after every event."""
        client, upstream = self._client, self._upstream
        self._touch()
        client.feed_from(upstream)
        upstream.feed_from(client)
        upstream.drain_into(self._take_answer, self._begin)
        client.drain_into(self._take_request, self._begin)
        while not (client.ended or upstream.ended or self._failure):
            check()
            await client.bell.wait()
        if self._failure is not None:
            raise self._failure
        client.write(await result(self._inspected.incoming(b"", last=True), self._begin))
        client.close()
        upstream.close()

    def _take_request(self, data: bytes) -> Generator[None, None, None]:
        self._touch()
        try:
            data = yield from self._inspected.outgoing(data, last=False)
        except Refusal as refusal:
            self._fail(self._client, refusal)
            return
        self._record.bytes_out += len(data)
        if data:
            self._upstream.write(data)

    def _take_answer(self, data: bytes) -> Generator[None, None, None]:
        self._touch()
        try:
            data = yield from self._inspected.incoming(data, last=False)
        except Refusal as refusal:
            self._fail(self._upstream, refusal)
            return
        self._record.bytes_in += len(data)
        if data:
            self._client.write(data)

    def _fail(self, source: Connection, refusal: Refusal) -> None:
        self._failure = refusal
        source.sink = discard
        self._client.bell.ring()

    def _touch(self) -> None:
        self._client.deadline = self._client.clock() + self._idle_seconds


def discard(_: bytes) -> None:
    """A sink for data that comes after a failure."""
