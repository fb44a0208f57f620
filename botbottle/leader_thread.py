"""Background work that one process of a home does at a time, whatever the number of workers."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path

from django.conf import settings
from django.db import close_old_connections, connections

from botbottle.core import locks

log = logging.getLogger(__name__)
PAUSE_SECONDS = 1.0


class LeaderThread:
    """A thread of each web process. The holder of the lock does the work; any end of it frees the lock."""

    name: str
    pause_seconds = PAUSE_SECONDS

    def __init__(self) -> None:
        self.was_woken = False  # this round was requested, not timed
        self._woken = threading.Event()
        self._stopping = threading.Event()
        self._lock: int | None = None

    def work(self) -> bool:
        """Do one round; returns True when more may be left to do at once."""
        raise NotImplementedError

    def start(self) -> None:
        threading.Thread(target=self._live, name=self.name, daemon=True).start()

    def wake(self) -> None:
        """There is something to do now: the next round does not wait for the clock."""
        self._woken.set()

    def stop(self) -> None:
        """Stop after this round, without waiting for it. Unfinished work is done after the next start."""
        self._stopping.set()
        self._woken.set()

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    def acquire(self) -> bool:
        """Whether this process is the leader. Raises OSError when the lock file cannot be used at all."""
        if self._lock is None:
            try:
                self._lock = locks.acquire(Path(settings.BOTTLE_HOME) / "run" / f"{self.name}.lock")
            except BlockingIOError:
                return False
        return True

    def release(self) -> None:
        """Let another worker become the leader."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _live(self) -> None:
        try:
            self._run()
        finally:
            connections.close_all()  # those of this thread

    def _run(self) -> None:
        while not self._stopping.is_set():
            self.was_woken = self._woken.is_set()
            if self.was_woken:
                self._woken.clear()
            try:
                close_old_connections()
                if self.acquire() and self.work():
                    continue
            except Exception:
                log.exception("A round of %s failed; trying again in a moment.", self.name)
            self._woken.wait(self.pause_seconds)
        self.release()
