"""Where a connection is counted: first as unauthenticated, then for its bottle, until its last byte has left.

Trust boundary: the other side decides how many connections it opens and when they end, so each is counted.
"""

from __future__ import annotations

import asyncio

from egress.proxy.config import TOLD
from egress.proxy.errors import Gone, Refusal
from egress.proxy.net.connection import Connection
from egress.proxy.state.bottle import BottleState, OpenConnection

LONG_HEAD = 4 * 1024  # one of 60 KB takes as long to read, and to search, as dozens of usual requests


class UnauthenticatedConnections:
    """TCP connections without a token yet, which no bottle counts. If there are too many, the oldest is cut.

    Connections with a token send it at once, so a flood of silent ones does not keep them out.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._present: dict[OpenConnection, None] = {}  # the oldest first
        self.line = asyncio.Lock()  # of those whose first request has a long head

    def __len__(self) -> int:
        return len(self._present)

    def add(self, connection: OpenConnection) -> None:
        if len(self._present) >= self._most:
            oldest = next(iter(self._present))
            self.discard(oldest)
            oldest.cut()
        self._present[connection] = None

    def discard(self, connection: OpenConnection) -> None:
        self._present.pop(connection, None)


class ConnectionSlot:
    def __init__(
        self,
        session: OpenConnection,
        connection: Connection,
        unauthenticated: UnauthenticatedConnections,
        most: int,
    ) -> None:
        """`most` is how many connections a bottle may have."""
        self._unauthenticated = unauthenticated
        self._most = most
        self._session = session
        self._connection = connection
        self._host: BottleState | None = None

    def begin(self) -> None:
        """Before the bottle is known."""
        self._unauthenticated.add(self._session)

    def enter(self, bottle: BottleState) -> None:
        """Raises Gone, or Refusal when the bottle has too many already."""
        if bottle.is_gone:
            raise Gone
        if self._host is not None:
            return
        most = self._most
        if len(bottle.connections) >= most + TOLD:
            bottle.counters["turned away"] += 1
            raise Gone
        self._host = bottle
        bottle.connections.add(self._session)
        self._unauthenticated.discard(self._session)
        if len(bottle.connections) > most:
            bottle.counters["turned away"] += 1
            raise Refusal("too-many-connections", f"The bottle has {most} open connections. Close some.", 503)

    async def leave(self) -> None:
        """Count it for as long as what was sent to it waits to be read."""
        self._connection.close()
        while self._connection.leaving:
            await self._connection.bell.wait()
        self._unauthenticated.discard(self._session)
        if self._host is not None:
            self._host.connections.discard(self._session)


async def stand_in_line(whose: BottleState | UnauthenticatedConnections) -> None:
    """Wait for the other connections of a bottle that sent much at once, one request at a time.

    All unauthenticated connections share one line.
    """
    async with whose.line:
        await asyncio.sleep(0)
