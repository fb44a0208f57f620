"""Imports the proxy's records into the database, and reports absences and problems to `proxy_health`.

One importer per home, whatever the number of workers: the one that has the lock. Traffic never waits for it.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import F
from django.db.models.functions import Now
from django.utils import timezone

from botbottle.database import reserve
from botbottle.leader_thread import LeaderThread
from botbottle.models import Bottle
from egress.models import ProxyEvent, RecordCursor, TrafficRecord
from egress.tables import homes, publishing
from egress.tables.proxy_client import (
    ANSWER_SECONDS,
    EgressProcess,
    PendingCall,
    ProxyClient,
    ProxyDown,
    RecordBatch,
)
from egress.traffic.proxy_health import absences, record_absence, record_event, record_return

LONG_POLL_SECONDS = 5.0
START_SECONDS = 15.0
STATUS_SECONDS = 5.0
RETRY_SECONDS = 1.0
LOSS_SECONDS = 60.0  # between two events about losses, or two updates of one about unauthenticated requests
STRANGERS_SECONDS = 3600.0
PRUNED_AT_ONCE = 5000
PRUNED_IN_A_ROUND = 10
Kind = ProxyEvent.Kind


@dataclass
class _Reader:
    """The state of one egress process, and the call that it has not answered yet."""

    process: EgressProcess
    patient_until: float  # it may just be starting
    pending: PendingCall | None = None
    asked_with: RecordCursor | None = None
    was_away: bool = False
    forgiven: str = ""  # the run that was told to stop: its successor may be starting
    due_at: float = 0.0  # the answer, or the next try
    status_at: float = 0.0
    problems: set[str] = field(default_factory=set)

    def ask(self, wait: float) -> None:
        """Raises ProxyDown."""
        which: dict[str, Any] = {"home": homes.home_id(), "process": self.process.number}
        cursor, _ = RecordCursor.objects.get_or_create(**which)
        self.was_away = absences().filter(**which).exists()
        wait = 0.0 if self.was_away else wait
        self.due_at = time.monotonic() + RETRY_SECONDS
        self.asked_with = cursor
        self.pending = self.process.ask_for_records(boot=cursor.boot, after=cursor.number, wait=wait)
        self.due_at = time.monotonic() + ANSWER_SECONDS + wait

    def is_patient(self) -> bool:
        """Whether the process may still be starting, after a planned stop too, and so is not missed yet."""
        boot = self.asked_with.boot if self.asked_with else ""
        if boot != self.forgiven and self.process.was_stopped(boot):
            self.forgiven, self.patient_until = boot, time.monotonic() + START_SECONDS
        return time.monotonic() <= self.patient_until

    def answer(self) -> RecordBatch:
        """Raises ProxyDown."""
        assert self.pending is not None  # noqa: S101
        self.due_at = time.monotonic() + RETRY_SECONDS
        try:
            self.pending.hurry()  # the answer has begun to arrive, so the other processes need not wait
            return RecordBatch.of(self.pending.answer())
        finally:
            self.close()

    def close(self) -> None:
        if self.pending is not None:
            self.pending.close()
            self.pending = None


class _Strangers:
    """Counts requests without a valid token: one event an hour, updated once a minute."""

    def __init__(self) -> None:
        self._unwritten = self._written = 0
        self._event: ProxyEvent | None = None
        self._begun_at = self._written_at = float("-inf")

    def add(self, count: int) -> None:
        self._unwritten += count
        now = time.monotonic()
        if not self._unwritten or now <= self._written_at + LOSS_SECONDS:
            return
        if self._event is None or now > self._begun_at + STRANGERS_SECONDS:
            self._event, self._begun_at, self._written = None, now, 0
        self._written, self._unwritten, self._written_at = self._written + self._unwritten, 0, now
        where = "at the proxy's TCP port, within an hour"
        text = f"requests with no or a wrong token {where}: {self._written:,}"
        self._event = record_event(Kind.STRANGERS, text, event=self._event)


class RecordImport(LeaderThread):
    """Imports for all workers, from all egress processes at once."""

    name = "record-import"

    def __init__(self, when_refused: Callable[[], None] = lambda: None) -> None:
        """`when_refused` is called after a batch with refusals that can be asked for is in the database."""
        super().__init__()
        self._when_refused = when_refused
        self._begun_at = time.monotonic()
        self._readers: list[_Reader] = []
        self._lost = 0
        self._loss_recorded_at = 0.0
        self._strangers = _Strangers()

    def work(self) -> bool:
        return self.import_next(publishing.proxy_client(), wait=LONG_POLL_SECONDS)

    def release(self) -> None:
        self._forget_readers()
        super().release()

    def import_next(self, proxy: ProxyClient, *, wait: float) -> bool:
        """Import what arrives first. Returns False if no egress process answers."""
        self._match_readers(proxy)
        now, idle = time.monotonic(), not any(reader.pending for reader in self._readers)
        for reader in self._readers:
            if reader.pending is None and (idle or now >= reader.due_at):
                self._unless_down(reader, partial(reader.ask, wait))
        saved = [self._unless_down(reader, partial(self._import, reader)) for reader in self._answered()]
        return any(saved) or any(reader.pending for reader in self._readers)

    def _match_readers(self, proxy: ProxyClient) -> None:
        """A restart may have changed the number of processes."""
        if len(self._readers) != proxy.count:
            since = time.monotonic() if self._readers else self._begun_at
            self._forget_readers()
            self._readers = [_Reader(process, since + START_SECONDS) for process in proxy.processes()]

    def _forget_readers(self) -> None:
        for reader in self._readers:
            reader.close()
        self._readers = []

    def _answered(self) -> list[_Reader]:
        """Wait for the first answer, and return the readers that have one or are overdue."""
        waiting = {reader.pending.fileno(): reader for reader in self._readers if reader.pending}
        if not waiting:
            return []
        poll = select.poll()
        for descriptor in waiting:
            poll.register(descriptor, select.POLLIN)
        due = min(reader.due_at for reader in self._readers)
        ready = {descriptor for descriptor, _ in poll.poll(max(0.0, due - time.monotonic()) * 1000)}
        now = time.monotonic()
        return [reader for each, reader in waiting.items() if each in ready or reader.due_at <= now]

    def _unless_down(self, reader: _Reader, step: Callable[[], None]) -> bool:
        """One process that is away does not stop the import of the others' records."""
        try:
            step()
        except ProxyDown as error:
            if not (reader.was_away or self.is_stopping or reader.is_patient()):
                record_absence(reader.process, str(error))
            return False
        return True

    def _import(self, reader: _Reader) -> None:
        """Save one batch in the database. Raises ProxyDown."""
        batch, cursor = reader.answer(), reader.asked_with
        reader.patient_until = 0.0
        assert cursor is not None  # noqa: S101
        if batch.boot != cursor.boot or reader.was_away:
            record_return(reader.process, away=reader.was_away, last_boot=cursor.boot)
        self._check_status(reader)
        strangers = sum(not record["bottle"] for record in batch.records)
        if reserve.is_needed():
            batch = batch.without_records()
        with transaction.atomic():
            _save(batch)
            RecordCursor.objects.filter(pk=cursor.pk).update(
                boot=batch.boot,
                number=batch.next,
                lost=F("lost") + batch.dropped,
                strangers=F("strangers") + strangers,
                heard_at=Now(),
            )
        reader.due_at = 0.0
        if any(record["verdict"] == "refused" and record.get("ask") for record in batch.records):
            self._when_refused()
        self._record_losses(batch.dropped)
        self._strangers.add(strangers)

    def _check_status(self, reader: _Reader) -> None:
        """Record unreadable files and missing credentials: shown while they last, one event for each."""
        if time.monotonic() < reader.status_at + STATUS_SECONDS:
            return
        reader.status_at = time.monotonic()
        reported = {
            slug: [problem for problem in (state["problem"], *state["credential_problems"]) if problem]
            for slug, state in reader.process.status()["bottles"].items()
        }
        publishing.record_problems(reported, reader.process.serves)
        present = {f"bottle {slug}: {problem}" for slug, problems in reported.items() for problem in problems}
        for problem in sorted(present - reader.problems):
            record_event(Kind.PROBLEM, problem, reader.process.number)
        reader.problems = present

    def _record_losses(self, dropped: int) -> None:
        """At most once a minute: a flood loses records all the time."""
        self._lost += dropped
        if self._lost and time.monotonic() > self._loss_recorded_at + LOSS_SECONDS:
            text = f"{self._lost} records of requests were lost before they could be read"
            record_event(Kind.DROPPED, text)
            self._lost, self._loss_recorded_at = 0, time.monotonic()


def prune() -> int:
    """Delete records past their age, in batches so that no other writer waits long. Returns how many."""
    oldest = timezone.now() - timedelta(days=settings.EGRESS_RECORD_DAYS)
    lasting = absences().filter(home__in={homes.home_id(), *homes.other_homes()})
    ProxyEvent.objects.filter(at__lt=oldest).exclude(
        pk__in=list(lasting.values_list("pk", flat=True))
    ).delete()
    overdue = TrafficRecord.objects.filter(at__lt=oldest).order_by("at").values_list("pk", flat=True)
    deleted = 0
    for _ in range(PRUNED_IN_A_ROUND):
        batch = list(overdue[:PRUNED_AT_ONCE])
        deleted += TrafficRecord.objects.filter(pk__in=batch).delete()[0]
        if len(batch) < PRUNED_AT_ONCE:
            break
    return deleted


def _save(batch: RecordBatch) -> None:
    """Save the records of this home's bottles, deleted ones too. Other homes send nothing here."""
    slugs = {record["bottle"] for record in batch.records}
    local = Bottle.objects.filter(slug__in=slugs, publication__home=homes.home_id())
    bottles = dict(local.order_by("pk").values_list("slug", "pk"))  # of several with one name, the youngest
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
