"""What must happen without anybody asking: finish what could not be applied, forget what is old."""

from __future__ import annotations

import asyncio
import logging
from contextvars import Context
from datetime import timedelta

from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import close_old_connections
from django.utils import timezone

from egress import intake, secrets, store

from . import applying, decisions
from .errors import AlreadyDecided
from .models import Proposal

log = logging.getLogger(__name__)
ROUND_SECONDS = 5.0


class Caretaker:
    """One per web process. Its work may be done by several at once: every step is safe to repeat."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_event_loop().create_task(self._run(), context=Context())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            try:
                await sync_to_async(tend)()
            except Exception:
                log.exception("A caretaking round failed; the next one is in %s seconds.", ROUND_SECONDS)
            await asyncio.sleep(ROUND_SECONDS)


def tend() -> None:
    close_old_connections()
    applying.retry_unfinished()
    store.catch_up()
    expire_old()
    intake.prune()
    secrets.hand_over_all()


def expire_old() -> int:
    oldest = timezone.now() - timedelta(seconds=settings.SUPERVISE_PROPOSAL_TTL_SECONDS)
    overdue = Proposal.objects.filter(status=Proposal.Status.PENDING, created_at__lt=oldest)
    expired = 0
    for pk in overdue.values_list("pk", flat=True)[:500]:
        try:
            decisions.expire(pk, reason="Nobody decided in time.")
            expired += 1
        except AlreadyDecided:
            continue
    return expired
