"""How long tests wait for what has to come. Machines are busy: only what is dead takes this long."""

from __future__ import annotations

import time
from collections.abc import Iterator

PATIENCE = 120.0  # seconds


def until_patience_ends(seconds: float = PATIENCE) -> Iterator[None]:
    """At least one round, then as many as there is time for."""
    deadline = time.monotonic() + seconds
    yield
    while time.monotonic() < deadline:
        yield
