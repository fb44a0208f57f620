"""TCP connections that have not sent a token yet: no bottle counts them, so they are bounded here."""

from __future__ import annotations

import asyncio

from egress.proxy.state.bottle import OpenConnection


class UnauthenticatedConnections:
    """When there are too many, the oldest one is cut.

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
