"""A log filter: one line a minute for each cause of a database fault, not a traceback for each request."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable

from botbottle.database.faults import Cause, fault_of

SECONDS = 60.0
MOST_TEXT = 300


class OneLineAMinute(logging.Filter):
    """Shortens and limits records of database faults; other records pass unchanged."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._lock = threading.Lock()
        self._next: dict[Cause, float] = {}
        self._left_out: Counter[Cause] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        fault = fault_of(error)
        if fault is None:
            return True
        with self._lock:
            if self._clock() < self._next.get(fault.cause, 0):
                self._left_out[fault.cause] += 1
                return False
            self._next[fault.cause] = self._clock() + SECONDS
            left_out = self._left_out.pop(fault.cause, 0)
        _shorten(record, f"{fault.cause.sentence} ({_one_line(str(error))})", left_out)
        return True


def _shorten(record: logging.LogRecord, reason: str, left_out: int) -> None:
    more = f" {left_out} more of these in the last minutes." if left_out else ""
    record.msg, record.args = "%s %s%s", (_one_line(record.getMessage()), reason, more)
    record.exc_info = record.exc_text = record.stack_info = None


def _one_line(text: str) -> str:
    return " ".join(text.split())[:MOST_TEXT]
