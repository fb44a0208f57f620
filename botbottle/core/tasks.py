"""Tasks of the event loop that have to end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

CANCELLATIONS = 5
CANCEL_PATIENCE = 0.2  # seconds


async def cancel_and_wait(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancel until the tasks end, within a second: one that is connecting to Redis may swallow it."""
    left = set(tasks)
    for _ in range(CANCELLATIONS):
        for task in left:
            task.cancel()
        left = (await asyncio.wait(left, timeout=CANCEL_PATIENCE))[1] if left else left
