"""What must happen without anybody asking: finish what could not be applied, forget what is old, look after
bottles that started or ended behind the database's back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextvars import Context
from datetime import timedelta

from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import close_old_connections, connection
from django.utils import timezone

from egress import intake, secrets, store

from . import applying, decisions, managed, rebuilding, settling
from .errors import AlreadyDecided
from .models import Proposal

log = logging.getLogger(__name__)
ROUND_SECONDS = 5.0


class Caretaker:
    """One per web process. Its work may be done by several at once: every step is safe to repeat."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        # Bottles apart, on a thread of their own: a container engine may take its time to answer.
        rounds = (sync_to_async(tend), lambda: asyncio.to_thread(look_after_bottles))
        loop = asyncio.get_event_loop()
        self._tasks = [loop.create_task(self._run(each), context=Context()) for each in rounds]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self, round_of: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await round_of()
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


def look_after_bottles() -> None:
    try:
        settling.reconcile()
        rebuilding.look_after()
        managed.look_after()
    finally:
        connection.close()  # the next round may be on another thread


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
