"""One record per request, in a bounded ring that the control plane reads at its own pace.

Trust boundary: a record holds no query, header or body, so no secret gets in. Traffic never waits for it.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

_KEPT = 20_000
_BATCH = 1_000
_MAX_PATH = 1_024


@dataclass(slots=True)
class Record:
    """Filled in as the request goes its way; made into plain data only when it is read."""

    bottle: str
    method: str = ""
    scheme: str = ""
    host: str = ""
    path: str = ""
    route: str | None = None
    verdict: str = "refused"
    reason: str = ""
    status: int = 0
    bytes_out: int = 0
    bytes_in: int = 0
    version: int = 0
    ask: dict[str, Any] | None = None
    finding: dict[str, str] | None = None  # what kind of secret was stopped, and where it stood
    warnings: list[str] = field(default_factory=list)
    started: float = field(default_factory=time.time)
    _clock: float = field(default_factory=time.perf_counter)
    first_byte_ms: float | None = None
    duration_ms: float = 0

    def note_first_byte(self) -> None:
        self.first_byte_ms = round((time.perf_counter() - self._clock) * 1000, 3)

    def as_dict(self) -> dict[str, Any]:
        plain: dict[str, Any] = {
            "at": round(self.started, 3),
            "bottle": self.bottle,
            "method": self.method,
            "scheme": self.scheme,
            "host": self.host,
            "path": self.path[:_MAX_PATH],
            "route": self.route,
            "table_version": self.version,
            "verdict": self.verdict,
            "reason": self.reason,
            "status": self.status,
            "bytes_out": self.bytes_out,
            "bytes_in": self.bytes_in,
            "first_byte_ms": self.first_byte_ms,
            "duration_ms": self.duration_ms,
        }
        if self.ask is not None:
            plain["ask"] = self.ask
        if self.finding is not None:
            plain["finding"] = self.finding
        if self.warnings:
            plain["warnings"] = self.warnings
        return plain

    def finish(self) -> None:
        self.duration_ms = round((time.perf_counter() - self._clock) * 1000, 3)


class Records:
    """Numbered from 1. A reader that falls behind loses the oldest, and is told how many."""

    def __init__(self, keep: int = _KEPT) -> None:
        self._ring: deque[Record] = deque(maxlen=keep)
        self._last = 0
        self._boot = secrets.token_hex(8)
        self._arrived: asyncio.Event | None = None

    def add(self, record: Record) -> None:
        self._last += 1
        record.finish()
        self._ring.append(record)
        if self._arrived is not None:
            self._arrived.set()

    async def after(self, number: int, *, boot: str, wait: float) -> dict[str, Any]:
        """A batch of what came after `number` of this run; waits a while when there is nothing."""
        if boot != self._boot or number > self._last:
            number = 0
        if number == self._last and wait > 0:
            await self._wait(wait)
        first = self._last - len(self._ring) + 1
        start = max(number + 1, first)
        batch = [record.as_dict() for record in islice(self._ring, start - first, start - first + _BATCH)]
        return {
            "boot": self._boot,
            "next": start + len(batch) - 1 if batch else max(number, first - 1),
            "dropped": start - number - 1,
            "records": batch,
        }

    async def _wait(self, seconds: float) -> None:
        self._arrived = self._arrived or asyncio.Event()
        self._arrived.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._arrived.wait()
        except TimeoutError:
            pass
