"""Events tell other processes and open pages that something changed: ids only, never agents' text."""

from __future__ import annotations

import logging
from typing import Any

from asgiref.sync import async_to_sync
from channels.layers import get_channel_layer
from django.db import transaction

from .models import Proposal

WAITERS = "supervise.waiters"
QUEUE = "supervise.queue"
log = logging.getLogger(__name__)


def announce(kind: str, proposal: Proposal) -> None:
    """Tell the queue pages, and the hubs where calls wait, once the transaction has committed."""
    event = {"type": "proposal.event", "kind": kind, "id": str(proposal.pk), "status": proposal.status}
    # robust: the change stands whatever happens to the message; sweepers and reloads find it.
    transaction.on_commit(lambda: _send(event), robust=True)


def _send(event: dict[str, Any]) -> None:
    try:
        async_to_sync(_send_to_groups)(event)
    except Exception:
        log.exception("An event could not be sent; waiting calls are found by the sweeper instead.")


async def _send_to_groups(event: dict[str, Any]) -> None:
    layer = get_channel_layer()
    if event["kind"] != "filed":
        await layer.group_send(WAITERS, event)
    await layer.group_send(QUEUE, event)
