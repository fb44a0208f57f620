"""Which calls wait in this process, so that a handshake client's `notifications/cancelled` can end one.

A cancellation only ends the wait: the proposal stays queued. One that reaches another worker than the call is
lost, and the wait ends by its time limit; a modern client closes its stream instead, which always works.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from supervise.waiting import Waiter

from .jsonrpc import RequestId

Key = tuple[int, RequestId]


@dataclass(eq=False)
class Cancellable:
    waiter: Waiter
    loop: asyncio.AbstractEventLoop
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True
        self.waiter.wake()


_waiting: dict[Key, list[Cancellable]] = {}


@contextmanager
def cancellable(bottle_id: int, request_id: RequestId, waiter: Waiter) -> Iterator[Cancellable]:
    """Enter on the event loop that the call waits on."""
    key, entry = (bottle_id, request_id), Cancellable(waiter, asyncio.get_running_loop())
    _waiting.setdefault(key, []).append(entry)
    try:
        yield entry
    finally:
        _waiting[key].remove(entry)
        if not _waiting[key]:
            del _waiting[key]


def cancel(bottle_id: int, request_id: object) -> bool:
    """End the wait of this request, from any thread. False when there is nothing to end.

    Without sessions two clients in one bottle may count alike; which of two calls was meant nobody knows,
    so then neither ends.
    """
    if isinstance(request_id, bool) or not isinstance(request_id, (str, int)):
        return False
    entries = list(_waiting.get((bottle_id, request_id), ()))
    if len(entries) != 1:
        return False
    entries[0].loop.call_soon_threadsafe(entries[0].cancel)
    return True
