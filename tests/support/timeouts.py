"""How long tests wait for what has to come. Machines are busy: only what is dead takes this long."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

PATIENCE = 120.0  # seconds


def until_patience_ends(seconds: float = PATIENCE) -> Iterator[None]:
    """At least one round, then as many as there is time for."""
    deadline = time.monotonic() + seconds
    yield
    while time.monotonic() < deadline:
        yield


def wait_until(
    condition: Callable[[], Any], *, seconds: float = PATIENCE, what: str = "the condition"
) -> Any:
    """Poll, bounded in time."""
    for _ in until_patience_ends(seconds):
        result = condition()
        if result:
            return result
        time.sleep(0.02)
    raise AssertionError(f"{what} did not come true within {seconds} s")
