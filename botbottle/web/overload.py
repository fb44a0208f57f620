"""The line in which an owner's requests wait, and the refusal when the line is full.

Neither uses a thread or the database.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import uniform
from typing import Any

from botbottle.web.access_log import AccessEntry
from botbottle.web.owners import Kind, Owner
from botbottle.web.planes import Plane
from botbottle.web.rpc_errors import UNAVAILABLE, error_body

MOST_UNANSWERED = {Kind.AGENTS: 256, Kind.OPERATORS: 256}  # requests of one owner that have no answer yet
BEGUN_ALONE = 2  # of these, begun at once while no other owner asks
BEGUN_AMONG_OTHERS = {Kind.AGENTS: 1, Kind.OPERATORS: 12}
ALONE_SECONDS = 1.0  # after another owner's last request
BEGUN = "begun"  # key in the scope of a request that has its turn
RETRY_AFTER = 5  # seconds
TOO_MANY = "Too many requests of this bottle are under way. Nothing was changed. Try again in 5 s."
BUSY = "The server is busy with other requests of yours. Nothing was changed. Try again in 5 s.\n"


class Line:
    """An owner's requests without an answer, in the order of their arrival.

    `most_begun` returns how many of them may be under way now.
    """

    def __init__(self, kind: Kind, most_begun: Callable[[], int]) -> None:
        self._most = MOST_UNANSWERED[kind]
        self._most_begun = most_begun
        self._begun = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def is_full(self) -> bool:
        return self._begun + len(self._waiting) >= self._most

    @property
    def is_empty(self) -> bool:
        return not (self._begun or self._waiting)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[Callable[[], None]]:
        """Wait for a turn. It lasts until the yielded function is called, or to the end."""
        await self._wait_for_turn()
        has_turn = True

        def answered() -> None:
            nonlocal has_turn
            if has_turn:
                has_turn = False
                self._begun -= 1
                self._begin()

        try:
            yield answered
        finally:
            answered()

    async def _wait_for_turn(self) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._begin()
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self._begun -= 1
            elif turn in self._waiting:
                self._waiting.remove(turn)
            self._begin()
            raise

    def _begin(self) -> None:
        while self._waiting and self._begun < self._most_begun():
            turn = self._waiting.popleft()
            if not turn.done():
                self._begun += 1
                turn.set_result(None)


class RecentOwners:
    """Remembers the latest owners, to tell whether an owner is alone."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._newest: tuple[Owner | None, float] = None, 0.0
        self._before: tuple[Owner | None, float] = None, 0.0

    def record(self, owner: Owner) -> None:
        if owner != self._newest[0]:
            self._before = self._newest
        self._newest = owner, self._clock()

    def most_begun(self, owner: Owner) -> int:
        """How many requests of this owner may be under way."""
        other, when = self._before if owner == self._newest[0] else self._newest
        is_alone = other is None or self._clock() > when + ALONE_SECONDS
        among_others = BEGUN_AMONG_OTHERS[owner.kind]
        return max(BEGUN_ALONE, among_others) if is_alone else among_others


async def refuse(owner: Owner, scope: Any, send: Any) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 4503})
        return
    agents = owner.kind is Kind.AGENTS
    status, body, media_type = (
        (429, error_body(UNAVAILABLE, TOO_MANY), b"application/json")
        if agents
        else (503, BUSY.encode(), b"text/plain")
    )
    headers = [(b"content-type", media_type), (b"retry-after", b"%d" % RETRY_AFTER)]
    if scope["plane"] is not Plane.RELAY:
        headers.append((b"content-length", b"%d" % len(body)))
    AccessEntry(scope["method"], scope["path"], bottle=owner.bottle).write(status)
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": True})
    # The answer is complete, but its connection carries no other request before the time it names. Through
    # the relay, which has a connection per request, the answer also does not end before that time.
    await asyncio.sleep(RETRY_AFTER * uniform(1, 2))  # noqa: S311 - so that not all come back at once
    await send({"type": "http.response.body", "body": b""})
