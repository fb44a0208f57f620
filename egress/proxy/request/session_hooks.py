"""What a session is told, and given, by the process that it runs in."""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable
from typing import Protocol

from egress.proxy.http.reader import Interlude
from egress.proxy.net.connection import Connection
from egress.proxy.request.current_request import CurrentRequest
from egress.proxy.request.origin import Origin
from egress.proxy.state.bottle import Bottle


class Entry(enum.Enum):
    """Where a connection came in, which decides who it is and what it may ask for."""

    PROXY_SOCKET = "proxy"
    AGENT_SOCKET = "agent"
    TCP = "tcp"


class InspectedSession(Protocol):
    """A session inside TLS, as its fast path uses it."""

    request: CurrentRequest

    def admit(self, raw: bytes) -> Origin:
        """Parse, decide and search the request that begins now. Raises Refusal, or Gone."""

    def end_request(self) -> None:
        """Keep its record, and be ready for the next one."""


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


# Makes the fast path of a session, for what arrives on this connection.
FastPaths = Callable[[InspectedSession, Connection, Bottle], FastPath]
# Passes a connection to the process that serves its bottle; False when that is this one.
PassToOwner = Callable[[Connection, bytes], Awaitable[bool]]
