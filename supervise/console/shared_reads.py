"""Reads that many open pages request after one event: done once for each commit, and shared.

A cached value is used only while the database reports no commit since it was read. What changes by time
alone, such as the end of a lease, is at most a second late.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextvars import Context
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache
from threading import Lock
from time import monotonic
from typing import Any, Generic, TypeVar
from urllib.parse import quote

from channels.db import database_sync_to_async
from django.db import connection
from django.utils import timezone

T = TypeVar("T")
FRESH = timedelta(seconds=1)
PATIENCE = 2.0  # seconds that a thread waits for another one's read, before it reads by itself
MOST_KEPT = 64


@dataclass(frozen=True, slots=True)
class _Read:
    value: Any
    commit: Hashable  # the newest one before the read
    begun: float  # by time.monotonic()
    at: datetime


@dataclass(slots=True)
class _Place:
    """One kind of read, done by the thread that has the lock."""

    lock: Any = field(default_factory=Lock)
    last: _Read | None = None


class SharedReads:
    """Shares reads among the threads of a process. Callers must not modify the values."""

    def __init__(self) -> None:
        self._mutex = Lock()
        self._places: OrderedDict[Hashable, _Place] = OrderedDict()

    def get(self, key: Hashable, read: Callable[[], T]) -> T:
        """The result of `read`, by this or another thread. It includes everything that was committed before
        the call.
        """
        if connection.in_atomic_block:  # which sees uncommitted data
            return read()
        asked, place = monotonic(), self._place(key)
        if not place.lock.acquire(timeout=PATIENCE):
            return read()
        try:
            if place.last is None or not _still_holds(place.last, asked):
                place.last = _read(read)
            value: T = place.last.value
            return value
        finally:
            place.lock.release()

    def _place(self, key: Hashable) -> _Place:
        with self._mutex:
            place = self._places.setdefault(key, _Place())
            self._places.move_to_end(key)
            if len(self._places) > MOST_KEPT:
                self._places.popitem(last=False)
            return place


def _read(read: Callable[[], Any]) -> _Read:
    begun, at, commit = (
        monotonic(),
        timezone.now(),
        newest_commit(),
    )  # in this order: everything before the read
    return _Read(read(), commit, begun, at)


def _still_holds(last: _Read, asked: float) -> bool:
    """Whether the value was read after the request, or nothing was committed since."""
    return last.begun >= asked or (timezone.now() - last.at < FRESH and last.commit == newest_commit())


def newest_commit() -> Hashable:
    """A value that differs after every commit of any process."""
    if connection.vendor == "sqlite":
        return _observer(str(connection.settings_dict["NAME"])).newest_commit()
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_current_snapshot()::text"
        )  # which transactions are visible, and nothing else
        return str(cursor.fetchone()[0])


class _Observer:
    """A separate connection, because SQLite counts for each connection the commits of all others."""

    def __init__(self, path: str) -> None:
        self._lock = Lock()
        self._path = path
        self._connection = sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True, check_same_thread=False)

    def newest_commit(self) -> tuple[str, int]:
        with self._lock:
            (number,) = self._connection.execute("PRAGMA data_version").fetchone()
        return self._path, number


@cache
def _observer(path: str) -> _Observer:
    return _Observer(path)


class SharedAsyncRead(Generic[T]):
    """The same for the tasks of an event loop: requests before a read begins share its result."""

    def __init__(self, read: Callable[[], T]) -> None:
        self._read = read
        self._loop: asyncio.AbstractEventLoop | None = None
        self._current: asyncio.Task[T] | None = None
        self._next: asyncio.Task[T] | None = None

    async def get(self) -> T:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._current, self._next = loop, None, None
        if self._next is None:
            # A context of its own, because it outlives the page that asks first.
            self._next = loop.create_task(self._refresh(self._current), context=Context())
        return await asyncio.shield(self._next)

    async def _refresh(self, before: asyncio.Task[T] | None) -> T:
        if before is not None:
            await asyncio.wait([before])
        self._current, self._next = self._next, None
        found: T = await database_sync_to_async(self._read)()
        return found


shared = SharedReads()
