"""The calls that wait in this process, so that `notifications/cancelled` of a handshake client can end one.

A cancellation only ends the wait: the proposal stays queued. If the call waits in another worker, all workers
are notified. A modern client closes its stream instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from supervise import events
from supervise.mcp.jsonrpc import RequestId
from supervise.proposals.waiting import Waiter, hub

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
    """Register a waiting call. Enter on the event loop that the call waits on."""
    key, entry = (bottle_id, request_id), Cancellable(waiter, asyncio.get_running_loop())
    _waiting.setdefault(key, []).append(entry)
    try:
        yield entry
    finally:
        _waiting[key].remove(entry)
        if not _waiting[key]:
            del _waiting[key]


def cancel(bottle_id: int, request_id: object) -> bool:
    """End the wait of this request, from any thread. Returns False if it does not wait here: then other
    workers are notified.

    There are no sessions, so two clients in one bottle may use the same id. Then it is unknown which call was
    meant, and neither ends.
    """
    if isinstance(request_id, bool) or not isinstance(request_id, (str, int)):
        return False
    if (bottle_id, request_id) not in _waiting:
        events.announce_cancelled(bottle_id, request_id)
        return False
    return _cancel_here(bottle_id, request_id)


def _cancel_here(bottle_id: int, request_id: RequestId) -> bool:
    entries = list(_waiting.get((bottle_id, request_id), ()))
    if len(entries) != 1:
        return False
    entries[0].loop.call_soon_threadsafe(entries[0].cancel)
    return True


def _receive(message: dict[str, Any]) -> None:
    if message["type"] == events.CANCELLED:
        _cancel_here(message["bottle"], message["request"])


hub.on_message(_receive)
