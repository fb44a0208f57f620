"""The background jobs: retry what could not be applied, delete what is old, and reconcile bottles that
started or ended without the database noticing.
"""

from __future__ import annotations

import asyncio
import logging
from contextvars import Context
from datetime import timedelta

from channels.layers import get_channel_layer
from django.conf import settings
from django.utils import timezone

from botbottle.core.tasks import cancel_and_wait
from botbottle.database import reserve
from botbottle.leader_thread import LeaderThread
from egress import secrets
from egress.tables import homes, publishing
from egress.traffic import proxy_health, record_import
from supervise import events
from supervise.bottles import mcp_servers, rebuild, reconcile
from supervise.disk.watch import DiskWatch
from supervise.errors import AlreadyDecided
from supervise.models import Proposal
from supervise.proposals import apply, decisions

log = logging.getLogger(__name__)
ROUND_SECONDS = 5.0


class RetryJob(LeaderThread):
    name = "retry-job"
    pause_seconds = ROUND_SECONDS

    def work(self) -> bool:
        run_maintenance(at_once=self.was_woken)
        return False


class ReconcileJob(LeaderThread):
    """Reconciles bottles, on a thread of its own: a container engine may be slow to answer."""

    name = "reconcile-job"  # not the lock of `reconcile` itself
    pause_seconds = ROUND_SECONDS

    def work(self) -> bool:
        reconcile_bottles()
        return False


class BackgroundJobs:
    """Runs in every web process; one process of a home does the work.

    Each job has a thread of its own: a hanging proxy delays neither the waiting calls nor the server's stop.
    """

    def __init__(self) -> None:
        self._jobs = (RetryJob(), ReconcileJob(), DiskWatch())
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        for job in self._jobs:
            job.start()
        self._tasks = [asyncio.get_event_loop().create_task(self._listen(), context=Context())]

    async def stop(self) -> None:
        for job in self._jobs:
            job.stop()
        await cancel_and_wait(self._tasks)

    async def _listen(self) -> None:
        """Run the jobs when another home calls. Calls may have been missed before the subscription, so run
        once first.
        """
        while True:
            try:
                layer = get_channel_layer()
                channel = await layer.new_channel("home")
                await layer.group_add(events.home_group(homes.home_id()), channel)
                while True:
                    for job in self._jobs:
                        job.wake()
                    await layer.receive(channel)
            except Exception:
                log.exception("The subscription to this home's calls broke; subscribing again in a second.")
                await asyncio.sleep(1)


def run_maintenance(*, at_once: bool = False) -> None:
    apply.retry_unfinished(at_once=at_once)
    publishing.catch_up()
    expire_old()
    proxy_health.forget_unwanted()
    record_import.prune()
    secrets.write_all_files()


def reconcile_bottles() -> None:
    reconcile.reconcile()
    rebuild.maintain()
    mcp_servers.maintain()


def expire_old() -> int:
    """Expire old proposals, and return how many. On a short disk they wait: each would use space that
    operators need to decide.
    """
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
