"""Work in the background that one process of a home does at a time, whatever the number of workers."""

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
    """A thread of the web process. Who holds the lock does the work; its end, however it comes, frees it."""

    name: str
    pause_seconds = PAUSE_SECONDS

    def __init__(self) -> None:
        self.was_called = False  # this round does not come by the clock
        self._called = threading.Event()
        self._stopping = threading.Event()
        self._lock: int | None = None

    def work(self) -> bool:
        """One round; True when there may be more to do at once."""
        raise NotImplementedError

    def start(self) -> None:
        threading.Thread(target=self._live, name=self.name, daemon=True).start()

    def call(self) -> None:
        """There is something to do now: the next round does not wait for the clock."""
        self._called.set()

    def stop(self) -> None:
        """Nobody waits for the end of the round: what is left undone is done after the next start."""
        self._stopping.set()
        self._called.set()

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    def acquire(self) -> bool:
        if self._lock is None:
            try:
                self._lock = locks.acquire(Path(settings.BOTTLE_HOME) / "run" / f"{self.name}.lock")
            except OSError:
                return False
        return True

    def release(self) -> None:
        """The next worker may do it."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _live(self) -> None:
        try:
            self._run()
        finally:
            connections.close_all()  # this thread's own

    def _run(self) -> None:
        while not self._stopping.is_set():
            self.was_called = self._called.is_set()
            if self.was_called:
                self._called.clear()
            try:
                close_old_connections()
                if self.acquire() and self.work():
                    continue
            except Exception:
                log.exception("A round of %s failed; trying again in a moment.", self.name)
            self._called.wait(self.pause_seconds)
        self.release()
