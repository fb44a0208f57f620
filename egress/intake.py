"""Reads the proxy's records into the database, and notes when the proxy was away or has a problem.

One reader per home, whatever the number of workers: who holds the lock reads. Traffic never waits for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from botbottle.duty import Duty
from botbottle.models import Bottle

from . import store
from .data_plane import DataPlane, DataPlaneDown, RecordBatch
from .models import DataPlaneEvent, RecordCursor, TrafficRecord

LONG_POLL_SECONDS = 5.0
START_SECONDS = 15.0
STATUS_SECONDS = 5.0
TELL_LOSS_SECONDS = 60.0
PRUNED_AT_ONCE = 5000
PRUNED_IN_A_ROUND = 10
Kind = DataPlaneEvent.Kind


class Intake(Duty):
    """Reads for all workers."""

    name = "intake"

    def __init__(self, when_refused: Callable[[], None] = lambda: None) -> None:
        """`when_refused` is called after a batch with refusals that can be asked for is in the database."""
        super().__init__()
        self._when_refused = when_refused
        self._patient_until = time.monotonic() + START_SECONDS  # both processes may just be starting
        self._problems: set[str] = set()
        self._status_at = 0.0
        self._lost = 0
        self._loss_told_at = 0.0

    def work(self) -> bool:
        return self.take(store.data_plane(), wait=LONG_POLL_SECONDS)

    def take(self, plane: DataPlane, *, wait: float) -> bool:
        """One batch into the database. False when the egress process does not answer."""
        cursor, _ = RecordCursor.objects.get_or_create(pk=1)
        away = _is_away()
        try:
            batch = plane.records(boot=cursor.boot, after=cursor.number, wait=0.0 if away else wait)
            self._patient_until = 0.0
            if batch.boot != cursor.boot or away:
                _returned(plane, away=away, first=not cursor.boot)
            self._look_for_problems(plane)
        except DataPlaneDown as error:
            if not away and not self.is_stopping and time.monotonic() > self._patient_until:
                _note(Kind.AWAY, f"{error}. Bottles reach nothing while it is away.")
            return False
        with transaction.atomic():
            _keep(batch)
            RecordCursor.objects.filter(pk=1).update(boot=batch.boot, number=batch.next)
        if any(record["verdict"] == "refused" and record.get("ask") for record in batch.records):
            self._when_refused()
        self._tell_losses(batch.dropped)
        return True

    def _look_for_problems(self, plane: DataPlane) -> None:
        """Files that could not be read, credentials that are missing: each is told once, until it is over."""
        if time.monotonic() < self._status_at + STATUS_SECONDS:
            return
        self._status_at = time.monotonic()
        present = {
            f"bottle {slug}: {problem}"
            for slug, state in plane.status()["bottles"].items()
            for problem in (state["problem"], *state["credential_problems"])
            if problem
        }
        for problem in sorted(present - self._problems):
            _note(Kind.PROBLEM, problem)
        self._problems = present

    def _tell_losses(self, dropped: int) -> None:
        """A flood loses records all the time: once a minute is often enough to hear of it."""
        self._lost += dropped
        if self._lost and time.monotonic() > self._loss_told_at + TELL_LOSS_SECONDS:
            _note(Kind.DROPPED, f"{self._lost} records of requests were lost before they could be read")
            self._lost, self._loss_told_at = 0, time.monotonic()


def prune() -> int:
    """Forget records past their age, a batch at a time so that nobody waits for it."""
    oldest = timezone.now() - timedelta(days=settings.EGRESS_RECORD_DAYS)
    DataPlaneEvent.objects.filter(at__lt=oldest).exclude(kind=Kind.AWAY).delete()
    overdue = TrafficRecord.objects.filter(at__lt=oldest).order_by("at").values_list("pk", flat=True)
    forgotten = 0
    for _ in range(PRUNED_IN_A_ROUND):
        batch = list(overdue[:PRUNED_AT_ONCE])
        forgotten += TrafficRecord.objects.filter(pk__in=batch).delete()[0]
        if len(batch) < PRUNED_AT_ONCE:
            break
    return forgotten


def _is_away() -> bool:
    """From the database: the reader before us may have noted it."""
    coming_and_going = DataPlaneEvent.objects.filter(kind__in=(Kind.AWAY, Kind.BACK, Kind.RESTARTED))
    latest = coming_and_going.first()
    return latest is not None and latest.kind == Kind.AWAY


def _returned(plane: DataPlane, *, away: bool, first: bool) -> None:
    """Perhaps a new run of the egress process, which may serve older tables than the last one did."""
    store.note_live({slug: state["version"] for slug, state in plane.status()["bottles"].items()})
    if away:
        _note(Kind.BACK, "the egress proxy answers again")
    elif not first:
        _note(Kind.RESTARTED, "the egress proxy was restarted")


def _keep(batch: RecordBatch) -> None:
    slugs = {record["bottle"] for record in batch.records}
    bottles = {
        bottle.slug: bottle.pk
        for bottle in Bottle.objects.filter(slug__in=slugs).order_by("pk").only("pk", "slug")
    }  # of several with one name, the youngest
    TrafficRecord.objects.bulk_create(
        [_row(record, bottles[record["bottle"]]) for record in batch.records if record["bottle"] in bottles]
    )


def _row(record: dict[str, Any], bottle_id: int) -> TrafficRecord:
    return TrafficRecord(
        bottle_id=bottle_id,
        at=datetime.fromtimestamp(record["at"], UTC),
        method=record["method"][:32],
        scheme=record["scheme"][:8],
        host=record["host"][:255],
        path=record["path"][:1024],
        route=(record["route"] or "")[:255],
        table_version=record["table_version"],
        verdict=record["verdict"][:16],
        reason=record["reason"][:40],
        status=record["status"],
        bytes_out=record["bytes_out"],
        bytes_in=record["bytes_in"],
        first_byte_ms=record["first_byte_ms"],
        duration_ms=record["duration_ms"],
        ask=record.get("ask"),
        finding=record.get("finding"),
        warnings=record.get("warnings", []),
    )


def _note(kind: str, text: str) -> None:
    DataPlaneEvent.objects.create(kind=kind, text=text[:300])
