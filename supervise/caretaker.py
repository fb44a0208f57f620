"""What must happen without anybody asking: finish what could not be applied, forget what is old, look after
bottles that started or ended behind the database's back."""

from __future__ import annotations

from datetime import timedelta

from django.conf import settings
from django.utils import timezone

from botbottle.duty import Duty
from egress import intake, secrets, store

from . import applying, decisions, managed, rebuilding, settling
from .errors import AlreadyDecided
from .models import Proposal

ROUND_SECONDS = 5.0


class Tending(Duty):
    name = "caretaker"
    pause_seconds = ROUND_SECONDS

    def work(self) -> bool:
        tend()
        return False


class Keeping(Duty):
    """Bottles apart, on a thread of their own: a container engine may take its time to answer."""

    name = "keeper"
    pause_seconds = ROUND_SECONDS

    def work(self) -> bool:
        look_after_bottles()
        return False


class Caretaker:
    """In every web process; one of a home's does the work.

    On threads of its own: a proxy that hangs holds up neither the calls that wait nor the server's end.
    """

    def __init__(self) -> None:
        self._duties = (Tending(), Keeping())

    def start(self) -> None:
        for duty in self._duties:
            duty.start()

    def stop(self) -> None:
        for duty in self._duties:
            duty.stop()


def tend() -> None:
    applying.retry_unfinished()
    store.catch_up()
    expire_old()
    intake.prune()
    secrets.hand_over_all()


def look_after_bottles() -> None:
    settling.reconcile()
    rebuilding.look_after()
    managed.look_after()


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
