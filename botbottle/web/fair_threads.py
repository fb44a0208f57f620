"""A few threads for all owners' work: owners take turns, and none can occupy all the threads.

Threads are long-lived, so they keep their database connections.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from django.db import close_old_connections

from botbottle.web.owners import Kind, Owner


@dataclass(slots=True)
class _Work:
    """The pending work of one owner."""

    owner: Owner
    jobs: deque[Callable[[], None]] = field(default_factory=deque)
    running: int = 0


Turn = tuple[_Work, Callable[[], None]]


class FairThreads:
    """Each free thread takes the next job of the next owner that may have another thread.

    `reserved` threads are left to the operators, and as many to the agents. A bottle has at most `for_one`
    threads, and one while others have work: threads that compute share one interpreter, so each slows the
    others down.
    """

    def __init__(self, threads: int = 8, *, reserved: int = 2, for_one: int = 3) -> None:
        self._pool = ThreadPoolExecutor(threads, "django")
        self._lock = threading.Lock()
        self._threads = threads
        self._most = threads - reserved
        self._for_one = for_one
        self._busy = dict.fromkeys(Kind, 0)
        self._known: dict[Owner, _Work] = {}
        self._turns: dict[Kind, deque[_Work]] = {kind: deque() for kind in Kind}  # owners with jobs, in order

    def of(self, owner: Owner) -> Executor:
        """An executor for the owner's work."""
        return _Share(self, owner)

    def close(self) -> None:
        """Start no more jobs: nobody waits for their answers any longer."""
        with self._lock:
            self._known.clear()
            for turns in self._turns.values():
                turns.clear()

    def shutdown(self) -> None:
        """End the threads after their current jobs."""
        self.close()
        self._pool.shutdown()

    def put(self, owner: Owner, job: Callable[[], None]) -> None:
        with self._lock:
            work = self._known.get(owner)
            if work is None:
                work = self._known[owner] = _Work(owner)
            if not work.jobs:
                self._turns[owner.kind].append(work)
            work.jobs.append(job)
            begun = self._begin()
        for turn in begun:
            self._pool.submit(self._serve, turn)

    def _serve(self, turn: Turn) -> None:
        """Do one job after the other, as long as there is one for this thread."""
        begun = [turn]
        while begun:
            work, job = begun.pop()
            for other in begun:
                self._pool.submit(self._serve, other)
            job()
            with self._lock:
                self._leave(work)
                begun = self._begin()

    def _begin(self) -> list[Turn]:
        begun = []
        while (turn := self._next()) is not None:
            begun.append(turn)
        return begun

    def _next(self) -> Turn | None:
        if sum(self._busy.values()) >= self._threads:
            return None
        for kind in Kind:
            if self._busy[kind] < self._most and (work := self._turn(kind)) is not None:
                job = work.jobs.popleft()
                if work.jobs:
                    self._turns[kind].append(work)
                work.running += 1
                self._busy[kind] += 1
                return work, job
        return None

    def _turn(self, kind: Kind) -> _Work | None:
        """Take the first owner that may have another thread; those before it keep their places."""
        most = self._threads if kind is Kind.OPERATORS else self._for_one if len(self._known) == 1 else 1
        turns = self._turns[kind]
        for place, work in enumerate(turns):
            if work.running < most:
                del turns[place]
                return work
        return None

    def _leave(self, work: _Work) -> None:
        self._busy[work.owner.kind] -= 1
        work.running -= 1
        if not (work.jobs or work.running):
            self._known.pop(work.owner, None)


class _Share(Executor):
    def __init__(self, threads: FairThreads, owner: Owner) -> None:
        self._threads = threads
        self._owner = owner

    def submit(self, work: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()

        def job() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                close_old_connections()  # of this thread: several may work on one request
                future.set_result(work(*arguments, **named))
            except BaseException as error:
                future.set_exception(error)

        self._threads.put(self._owner, job)
        return future
