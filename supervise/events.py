"""Events notify other processes and open pages of a change: they carry ids, never agents' text."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Any

from asgiref.sync import async_to_sync
from channels.layers import get_channel_layer
from django.db import transaction

from botbottle.models import Bottle
from supervise.models import Proposal

WAITERS = "supervise.waiters"
QUEUE = "supervise.queue"
BOTTLES = "supervise.bottles"
CANCELLED = "cancelled.event"
log = logging.getLogger(__name__)
_loop: asyncio.AbstractEventLoop | None = None
_being_sent: set[asyncio.Task[None]] = set()


def send_on(loop: asyncio.AbstractEventLoop) -> None:
    """Send events on this loop from now on. No thread waits for them, and a stopped loop drops them."""
    global _loop  # noqa: PLW0603 - one loop serves a process
    _loop = loop


def announce(kind: str, proposal: Proposal, *, wake: bool = True) -> None:
    """Notify the queue pages, and with `wake` the hubs too, once the transaction has committed."""
    event = {"type": "proposal.event", "kind": kind, "id": str(proposal.pk), "status": proposal.status}
    groups = [WAITERS, QUEUE] if wake else [QUEUE]
    # robust: the change stands whatever happens to the message; the sweep and reloads find it.
    transaction.on_commit(lambda: _send({**event, "groups": groups}), robust=True)


def announce_bottle(bottle: Bottle, state: str) -> None:
    """Notify the pages that show bottles, once the transaction has committed."""
    event = {"type": "bottle.event", "id": bottle.pk, "state": state, "groups": [BOTTLES]}
    transaction.on_commit(lambda: _send(event), robust=True)


def announce_cancelled(bottle_id: int, request_id: str | int) -> None:
    """Notify every worker that a bottle's client no longer waits for its request."""
    _send({"type": CANCELLED, "bottle": bottle_id, "request": request_id, "groups": [WAITERS]})


def announce_refusals() -> None:
    """Notify the queue pages of refused requests that may not have been asked for."""
    _send({"type": "refused.event", "groups": [QUEUE]})


def home_group(home: str) -> str:
    return f"supervise.home.{home}"


def call_home(home: str) -> None:
    """Notify the workers of another home that there is something to apply, after the commit."""
    event = {"type": "home.event", "groups": [home_group(home)]}
    transaction.on_commit(lambda: _send(event), robust=True)


def _send(event: dict[str, Any]) -> None:
    """Send without blocking a server's thread: its loop may stop at any moment, and the sweep finds the
    change.
    """
    if (
        _loop is None or _loop.is_closed()
    ):  # a command: it has no loop, and must not end before the event is sent
        async_to_sync(_send_safely)(event)
        return
    with suppress(RuntimeError):  # closed since the check
        _loop.call_soon_threadsafe(_begin, event)


def _begin(event: dict[str, Any]) -> None:
    """Runs on the loop. The coroutine is created here, because a stopped loop would leave it unawaited."""
    sending = asyncio.get_running_loop().create_task(_send_safely(event))
    _being_sent.add(sending)  # the loop itself keeps no reference
    sending.add_done_callback(_being_sent.discard)


async def _send_safely(event: dict[str, Any]) -> None:
    try:
        await _send_to_groups(event)
    except Exception:
        log.exception("An event could not be sent; waiting calls are found by the sweeper instead.")


async def _send_to_groups(event: dict[str, Any]) -> None:
    layer = get_channel_layer()
    for group in event.pop("groups"):
        await layer.group_send(group, event)
