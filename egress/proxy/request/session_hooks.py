"""The parts of a session that come from the process it runs in."""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable
from typing import Protocol

from egress.proxy.http.reader import Interlude
from egress.proxy.net.connection import Connection
from egress.proxy.request.origin import Origin


class Entry(enum.Enum):
    """Where a connection came in, which decides who it is and what it may ask for."""

    PROXY_SOCKET = "proxy"
    AGENT_SOCKET = "agent"
    TCP = "tcp"


class FastPath(Interlude, Protocol):
    """Serves simple requests of a session where they arrive, while its task waits for the next one."""

    def take(self, data: bytes) -> bool:
        """Whether this is a request that it takes; if not, nothing has happened."""

    def release(self) -> tuple[Origin, Connection | None]:
        """The admitted request for the task to continue, and the connection that it was sent on already.

        Raises what ended it.
        """

    def cut(self) -> None:
        """End what is under way at once."""


# Passes a connection to the process that serves its bottle; False when that is this one.
PassToOwner = Callable[[Connection, bytes], Awaitable[bool]]
