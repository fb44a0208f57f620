"""What must happen without anybody asking: finish what could not be applied, forget what is old, look after
bottles that started or ended behind the database's back."""

from __future__ import annotations

import asyncio
import logging
from contextvars import Context
from datetime import timedelta

from channels.layers import get_channel_layer
from django.conf import settings
from django.utils import timezone

from botbottle.database import reserve
from botbottle.leader_thread import LeaderThread
from egress import secrets
from egress.tables import versions
from egress.traffic import record_import
from supervise import events
from supervise.bottles import mcp_servers, rebuild, reconcile
from supervise.disk.watch import DiskWatch
from supervise.errors import AlreadyDecided
from supervise.models import Proposal
from supervise.proposals import apply, decisions
from supervise.proposals.waiting import ended

log = logging.getLogger(__name__)
ROUND_SECONDS = 5.0


class RetryJob(LeaderThread):
    name = "retry-job"
    pause_seconds = ROUND_SECONDS

    def work(self) -> bool:
        run_maintenance(at_once=self.was_woken)
        return False


class ReconcileJob(LeaderThread):
    """Bottles apart, on a thread of their own: a container engine may take its time to answer."""

    name = "reconcile-job"  # not the lock of `reconcile` itself
    pause_seconds = ROUND_SECONDS

    def work(self) -> bool:
        reconcile_bottles()
        return False


class BackgroundJobs:
    """In every web process; one of a home's does the work.

    On threads of its own: a proxy that hangs holds up neither the calls that wait nor the server's end.
    """

    def __init__(self) -> None:
        self._duties = (RetryJob(), ReconcileJob(), DiskWatch())
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        for duty in self._duties:
            duty.start()
        self._tasks = [asyncio.get_event_loop().create_task(self._listen(), context=Context())]

    async def stop(self) -> None:
        for duty in self._duties:
            duty.stop()
        await ended(self._tasks)

    async def _listen(self) -> None:
        """Workers of other homes leave our bottles to us, and call; some perhaps before we listened."""
        while True:
            try:
                layer = get_channel_layer()
                channel = await layer.new_channel("home")
                await layer.group_add(events.home_group(versions.home_id()), channel)
                while True:
                    for duty in self._duties:
                        duty.wake()
                    await layer.receive(channel)
            except Exception:
                log.exception("The subscription to this home's calls broke; subscribing again in a second.")
                await asyncio.sleep(1)


def run_maintenance(*, at_once: bool = False) -> None:
    apply.retry_unfinished(at_once=at_once)
    versions.catch_up()
    expire_old()
    record_import.forget_unwanted()
    record_import.prune()
    secrets.hand_over_all()


def reconcile_bottles() -> None:
    reconcile.reconcile()
    rebuild.maintain()
    mcp_servers.maintain()


def expire_old() -> int:
    """How many expired. On a short disk they wait: each takes room from what operators decide."""
    if reserve.is_needed():
        return 0
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
