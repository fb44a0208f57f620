"""Idle connections to origins, reused within one bottle.

Trust boundary: what an origin sends unasked ends the connection, so that it can never answer a later request.
"""

from __future__ import annotations

import math

from egress.proxy.net.connection import Connection
from egress.proxy.net.wakeup import Wakeup

Key = tuple[str, str, tuple[str, ...]]  # scheme, host, pinned addresses

KEPT_SECONDS = 30.0
TRUSTED_SECONDS = 3.0  # origins close idle connections at any moment; sooner than this is rare


_nobody = Wakeup()  # of connections that nobody waits for


class Pool:
    """Idle connections of one bottle. Each was dialled to an address that was checked for its key."""

    def __init__(self, most: int) -> None:
        self._idle: dict[Key, list[tuple[Connection, float]]] = {}
        self._most = most
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def take(self, key: Key, client: Connection, *, repeatable: bool) -> Connection | None:
        """The freshest idle connection. One that was idle for long serves repeatable requests only."""
        idle = self._idle.get(key)
        while idle:
            connection, since = idle.pop()
            self._count -= 1
            if connection.ended:
                continue
            if connection.clock() - since <= (KEPT_SECONDS if repeatable else TRUSTED_SECONDS):
                connection.bell, connection.sink = client.bell, None
                return connection
            connection.close()
        return None

    def return_connection(self, key: Key, connection: Connection) -> None:
        """Keep it for later, if there is room. The caller writes nothing to it any more."""
        if self._count >= self._most:
            connection.close()
            return
        connection.deadline = math.inf
        connection.bell = _nobody
        connection.sink = connection.reject_unexpected_data
        self._idle.setdefault(key, []).append((connection, connection.clock()))
        self._count += 1

    def prune(self, now: float) -> None:
        """Close what has ended or was idle for too long."""
        for key, idle in list(self._idle.items()):
            kept = []
            for connection, since in idle:
                if connection.ended or now - since > KEPT_SECONDS:
                    connection.close()
                else:
                    kept.append((connection, since))
            self._count -= len(idle) - len(kept)
            self._idle[key] = kept
            if not kept:
                del self._idle[key]

    def close(self) -> None:
        for idle in self._idle.values():
            for connection, _ in idle:
                connection.close()
        self._idle.clear()
        self._count = 0
