"""One timer for the deadlines of all connections."""

from __future__ import annotations

import asyncio
from typing import Protocol

from egress.proxy.net.registration import Registry


class Expiring(Protocol):
    deadline: float

    def expire(self) -> None:
        """Its deadline is over."""


class DeadlineTimer:
    """Expires every open connection that is past its deadline.

    `leaving_seconds` is how long a closed connection may take to send what was written before.
    """

    def __init__(self, every: float = 0.25, *, leaving_seconds: float = 30.0) -> None:
        self.leaving_seconds = leaving_seconds
        self.registry = Registry()
        self.clock = asyncio.get_running_loop().time
        self._connections: set[Expiring] = set()
        self._every = every

    def __len__(self) -> int:
        return len(self._connections)

    def add(self, connection: Expiring) -> None:
        self._connections.add(connection)

    def discard(self, connection: Expiring) -> None:
        self._connections.discard(connection)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._every)
            now = self.clock()
            for connection in [each for each in self._connections if each.deadline <= now]:
                connection.expire()
