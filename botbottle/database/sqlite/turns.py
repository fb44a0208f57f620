"""A lock that threads get in the order of their requests. Pure."""

from __future__ import annotations

import os
from collections import deque
from functools import cache
from threading import Lock


class Turns:
    """A fair lock: a release passes it to the thread that has waited longest."""

    def __init__(self) -> None:
        self._mutex = Lock()
        self._is_held = False
        self._waiting: deque[Lock] = deque()

    def __len__(self) -> int:
        """The number of waiting threads."""
        return len(self._waiting)

    def acquire(self, patience: float) -> bool:
        """Wait for a turn; False if none came within the given seconds. Not reentrant."""
        with self._mutex:
            if not self._is_held:
                self._is_held = True
                return True
            place = Lock()
            place.acquire()
            self._waiting.append(place)
        try:
            came = place.acquire(timeout=patience)
        except BaseException:
            if not self._leave(place):
                self.release()
            raise
        return came or not self._leave(place)

    def release(self) -> None:
        with self._mutex:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._is_held = False

    def _leave(self, place: Lock) -> bool:
        """Stop waiting; False when the turn arrived at this moment."""
        with self._mutex:
            if place not in self._waiting:
                return False
            self._waiting.remove(place)
            return True


@cache
def turns_at(path: str) -> Turns:
    """The queue of a database; one for each database of this process."""
    return Turns()


# Threads that had or awaited a turn do not exist in a forked process.
os.register_at_fork(after_in_child=turns_at.cache_clear)
