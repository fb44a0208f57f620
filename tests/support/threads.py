"""Several callers at the same moment, each with a database connection of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

from django.db import connections


def together(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """Start all calls at once; each one's result, or the exception it raised."""
    start = Barrier(len(calls), timeout=30)

    def run(call: Callable[[], Any]) -> Any:
        try:
            start.wait()
            return call()
        except Exception as error:
            return error
        finally:
            connections.close_all()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))
