"""One record per request, kept within bounds until the control plane has read it at its own pace.

Trust boundary: a record holds no query, header or body, so no secret gets in. Traffic never waits for it.
"""

from __future__ import annotations

import asyncio
import secrets
from bisect import bisect_right
from collections import deque
from itertools import islice
from operator import itemgetter
from time import perf_counter, time
from typing import Any

import msgspec

_KEPT = 20_000
BATCH = 500  # the most that a reader gets at once
_MAX_PATH = 1_024
_number = itemgetter(0)


class Record(msgspec.Struct, gc=False, omit_defaults=True):
    """Filled in as the request goes its way; made into text only when it is read.

    There are thousands a second and many thousands at a time, so the garbage collector does not track them:
    nothing in a record refers back to it.
    """

    bottle: str
    at: float
    method: str
    scheme: str
    host: str
    path: str
    route: str | None
    table_version: int
    verdict: str
    reason: str
    status: int
    bytes_out: int
    bytes_in: int
    first_byte_ms: float | None
    duration_ms: float
    ask: dict[str, Any] | None = None
    finding: dict[str, str] | None = None  # what kind of secret was stopped, and where it stood
    warnings: tuple[str, ...] = ()
    # Only while it is filled in: `Records.add` resets them, and defaults are left out of the text.
    clock: float = 0.0  # when it began, by `perf_counter`
    url_is_clean: bool = False  # it was searched for secrets already

    def begin(self) -> None:
        """Time counts from here, not from when the connection began to wait for a request."""
        self.at, self.clock = time(), perf_counter()

    def answered(self, status: int) -> None:
        """The head of the answer is here."""
        self.status, self.first_byte_ms = status, (perf_counter() - self.clock) * 1000


def blank_record(bottle: str) -> Record:
    """For a request of which nothing is known yet: refused, until it is decided otherwise."""
    return Record(bottle, 0.0, "", "", "", "", None, 0, "refused", "", 0, 0, 0, None, 0.0)


class Batch(msgspec.Struct):
    """`next` is the number to ask for the following ones with, `boot` names this run of the process."""

    boot: str
    next: int
    dropped: int
    records: list[Record]

    def as_json(self) -> bytes:
        return msgspec.json.encode(self)


class Records:
    """Numbered from 1. A reader that falls behind loses the oldest, and is told how many.

    When full, drop the oldest records of the bottle that has the most: a flood costs no other bottle its own.
    """

    def __init__(self, keep: int = _KEPT) -> None:
        self._of_bottle: dict[str, deque[tuple[int, Record]]] = {}
        self._keep = keep
        self._most = keep + keep // 20  # so that room is made for many at once
        self._count = 0
        self._last = 0
        self._read: int | None = None  # a reader has all up to this one; None if none ever asked
        self.boot = secrets.token_hex(8)
        self._arrived: asyncio.Event | None = None

    def add(self, record: Record) -> None:
        """The request ends now; its record is not changed any more."""
        self._last += 1
        record.duration_ms = (perf_counter() - record.clock) * 1000
        record.clock, record.url_is_clean = 0.0, False
        if len(record.path) > _MAX_PATH:
            record.path = record.path[:_MAX_PATH]
        kept = self._of_bottle.get(record.bottle)
        if kept is None:
            kept = self._of_bottle[record.bottle] = deque()
        kept.append((self._last, record))
        self._count += 1
        if self._count > self._most:
            self._make_room()
        if self._arrived is not None:
            self._arrived.set()

    def _make_room(self) -> None:
        """Each bottle keeps an equal share, if it has that many."""
        share = self._keep // len(self._of_bottle)
        while (too_many := self._count - self._keep) > 0:
            whose, kept = max(self._of_bottle.items(), key=lambda each: len(each[1]))
            lost = min(too_many, max(1, len(kept) - share))
            for _ in range(lost):
                kept.popleft()
            self._count -= lost
            if not kept:
                del self._of_bottle[whose]

    async def after(self, number: int, *, boot: str, wait: float) -> Batch:
        """A batch of what came after `number` of this run; waits a while when there is nothing."""
        if boot != self.boot or number > self._last:
            number = 0
        self._read = max(self._read or 0, number)  # a reader that asks for more has kept these
        if number == self._last and wait > 0:
            await self._wait(wait)
        unread = [entry for kept in self._of_bottle.values() for entry in _newer(kept, number)]
        batch = sorted(unread, key=_number)[:BATCH]
        following = batch[-1][0] if len(batch) == BATCH else self._last
        return Batch(self.boot, following, following - number - len(batch), [record for _, record in batch])

    async def read_out(self, seconds: float) -> None:
        """At the end: wait until a reader has all of them, if there is one, within the limit."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + seconds
        while self._read is not None and self._read < self._last and clock() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.02)

    async def _wait(self, seconds: float) -> None:
        self._arrived = self._arrived or asyncio.Event()
        self._arrived.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._arrived.wait()
        except TimeoutError:
            pass


def _newer(kept: deque[tuple[int, Record]], number: int) -> list[tuple[int, Record]]:
    """The oldest of them, as many as a reader gets, in any order."""
    unread = len(kept) - bisect_right(kept, number, key=_number)
    return list(islice(reversed(kept), max(0, unread - BATCH), unread))
