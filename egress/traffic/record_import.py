"""Reads the proxy's records into the database, and notes when the proxy was away or has a problem.

One reader per home, whatever the number of workers: who holds the lock reads. Traffic never waits for it.
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
from django.db.models import Exists, F, Max, OuterRef, QuerySet, Sum
from django.db.models.functions import Now
from django.utils import timezone

from botbottle.database import reserve
from botbottle.leader_thread import LeaderThread
from botbottle.models import Bottle
from egress.models import ProxyEvent, RecordCursor, TrafficRecord
from egress.tables import versions
from egress.tables.proxy_client import (
    ANSWER_SECONDS,
    EgressProcess,
    PendingCall,
    ProxyClient,
    ProxyDown,
    RecordBatch,
)

LONG_POLL_SECONDS = 5.0
START_SECONDS = 15.0
STATUS_SECONDS = 5.0
RETRY_SECONDS = 1.0
NAMED = 5
TELL_LOSS_SECONDS = 60.0
STRANGERS_SECONDS = 3600.0
SILENCE = timedelta(minutes=1)  # idle processes are asked every few seconds
PRUNED_AT_ONCE = 5000
PRUNED_IN_A_ROUND = 10
Kind = ProxyEvent.Kind


@dataclass
class _Reader:
    """What is known of one egress process, and the question that it has not answered yet."""

    process: EgressProcess
    patient_until: float  # it may just be starting
    question: PendingCall | None = None
    asked_with: RecordCursor | None = None
    was_away: bool = False
    forgiven: str = ""  # the run of it that was told to stop: its successor may be starting
    due_at: float = 0.0  # the answer, or the next try
    status_at: float = 0.0
    problems: set[str] = field(default_factory=set)

    def ask(self, wait: float) -> None:
        """Raises ProxyDown."""
        which: dict[str, Any] = {"home": versions.home_id(), "process": self.process.number}
        cursor, _ = RecordCursor.objects.get_or_create(**which)
        self.was_away = _absences().filter(**which).exists()
        wait = 0.0 if self.was_away else wait
        self.due_at = time.monotonic() + RETRY_SECONDS
        self.asked_with = cursor
        self.question = self.process.ask_for_records(boot=cursor.boot, after=cursor.number, wait=wait)
        self.due_at = time.monotonic() + ANSWER_SECONDS + wait

    def is_patient(self) -> bool:
        """A process that is just starting, after a planned stop too, is not missed yet."""
        boot = self.asked_with.boot if self.asked_with else ""
        if boot != self.forgiven and self.process.was_stopped(boot):
            self.forgiven, self.patient_until = boot, time.monotonic() + START_SECONDS
        return time.monotonic() <= self.patient_until

    def answer(self) -> RecordBatch:
        """Raises ProxyDown."""
        assert self.question is not None  # noqa: S101
        self.due_at = time.monotonic() + RETRY_SECONDS
        try:
            self.question.lose_patience()  # whatever is to come has begun to: nobody else is kept waiting
            return RecordBatch.of(self.question.answer())
        finally:
            self.close()

    def close(self) -> None:
        if self.question is not None:
            self.question.close()
            self.question = None


class _Strangers:
    """Requests without a bottle's token. However many come: one event an hour, written once a minute."""

    def __init__(self) -> None:
        self._unwritten = self._written = 0
        self._event: ProxyEvent | None = None
        self._begun_at = self._written_at = float("-inf")

    def add(self, count: int) -> None:
        self._unwritten += count
        now = time.monotonic()
        if not self._unwritten or now <= self._written_at + TELL_LOSS_SECONDS:
            return
        if self._event is None or now > self._begun_at + STRANGERS_SECONDS:
            self._event, self._begun_at, self._written = None, now, 0
        self._written, self._unwritten, self._written_at = self._written + self._unwritten, 0, now
        where = "at the proxy's TCP port, within an hour"
        text = f"requests with no or a wrong token {where}: {self._written:,}"
        self._event = _note(Kind.STRANGERS, text, event=self._event)


class RecordImport(LeaderThread):
    """Reads for all workers, from all egress processes at once."""

    name = "record-import"

    def __init__(self, when_refused: Callable[[], None] = lambda: None) -> None:
        """`when_refused` is called after a batch with refusals that can be asked for is in the database."""
        super().__init__()
        self._when_refused = when_refused
        self._begun_at = time.monotonic()
        self._readers: list[_Reader] = []
        self._lost = 0
        self._loss_told_at = 0.0
        self._strangers = _Strangers()

    def work(self) -> bool:
        return self.take(versions.proxy_client(), wait=LONG_POLL_SECONDS)

    def release(self) -> None:
        self._forget_readers()
        super().release()

    def take(self, proxy: ProxyClient, *, wait: float) -> bool:
        """What has come first into the database. False when no egress process answers."""
        self._meet(proxy)
        now, idle = time.monotonic(), not any(reader.question for reader in self._readers)
        for reader in self._readers:
            if reader.question is None and (idle or now >= reader.due_at):
                self._unless_down(reader, partial(reader.ask, wait))
        kept = [self._unless_down(reader, partial(self._keep, reader)) for reader in self._answered()]
        return any(kept) or any(reader.question for reader in self._readers)

    def _meet(self, proxy: ProxyClient) -> None:
        """A restart may have changed how many there are."""
        if len(self._readers) != proxy.count:
            since = time.monotonic() if self._readers else self._begun_at
            self._forget_readers()
            self._readers = [_Reader(process, since + START_SECONDS) for process in proxy.processes()]

    def _forget_readers(self) -> None:
        for reader in self._readers:
            reader.close()
        self._readers = []

    def _answered(self) -> list[_Reader]:
        """Waits for the first, or until somebody has kept us waiting for too long."""
        waiting = {reader.question.fileno(): reader for reader in self._readers if reader.question}
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
        """One process that is away keeps nobody from the records of the others."""
        try:
            step()
        except ProxyDown as error:
            if not (reader.was_away or self.is_stopping or reader.is_patient()):
                versions.note_problems({}, reader.process.serves)  # it cannot say whether they last
                _note(Kind.AWAY, f"{error}. {_consequence(reader.process)}", reader.process.number)
            return False
        return True

    def _keep(self, reader: _Reader) -> None:
        """One batch into the database. Raises ProxyDown."""
        batch, cursor = reader.answer(), reader.asked_with
        reader.patient_until = 0.0
        assert cursor is not None  # noqa: S101
        if batch.boot != cursor.boot or reader.was_away:
            _returned(reader.process, away=reader.was_away, last_boot=cursor.boot)
        self._look_for_problems(reader)
        strangers = sum(not record["bottle"] for record in batch.records)
        if reserve.is_needed():
            batch = batch.without_records()
        with transaction.atomic():
            _keep(batch)
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
        self._tell_losses(batch.dropped)
        self._strangers.add(strangers)

    def _look_for_problems(self, reader: _Reader) -> None:
        """Files that could not be read, credentials that are missing: shown until it is over, noted once."""
        if time.monotonic() < reader.status_at + STATUS_SECONDS:
            return
        reader.status_at = time.monotonic()
        said = {
            slug: [problem for problem in (state["problem"], *state["credential_problems"]) if problem]
            for slug, state in reader.process.status()["bottles"].items()
        }
        versions.note_problems(said, reader.process.serves)
        present = {f"bottle {slug}: {problem}" for slug, problems in said.items() for problem in problems}
        for problem in sorted(present - reader.problems):
            _note(Kind.PROBLEM, problem, reader.process.number)
        reader.problems = present

    def _tell_losses(self, dropped: int) -> None:
        """A flood loses records all the time: once a minute is often enough to hear of it."""
        self._lost += dropped
        if self._lost and time.monotonic() > self._loss_told_at + TELL_LOSS_SECONDS:
            _note(Kind.DROPPED, f"{self._lost} records of requests were lost before they could be read")
            self._lost, self._loss_told_at = 0, time.monotonic()


def prune() -> int:
    """Forget records past their age, a batch at a time so that nobody waits for it."""
    oldest = timezone.now() - timedelta(days=settings.EGRESS_RECORD_DAYS)
    lasting = _absences().filter(home__in={versions.home_id(), *versions.other_homes()})
    ProxyEvent.objects.filter(at__lt=oldest).exclude(
        pk__in=list(lasting.values_list("pk", flat=True))
    ).delete()
    overdue = TrafficRecord.objects.filter(at__lt=oldest).order_by("at").values_list("pk", flat=True)
    forgotten = 0
    for _ in range(PRUNED_IN_A_ROUND):
        batch = list(overdue[:PRUNED_AT_ONCE])
        forgotten += TrafficRecord.objects.filter(pk__in=batch).delete()[0]
        if len(batch) < PRUNED_AT_ONCE:
            break
    return forgotten


def losses() -> str:
    """What no list shows: records that nobody read in time, requests of nobody. Empty when none was."""
    sums = RecordCursor.objects.aggregate(lost=Sum("lost", default=0), strangers=Sum("strangers", default=0))
    sentences = {
        "lost": "Records of requests that were ever lost before they could be read",
        "strangers": "Requests that ever came to the proxy's TCP port with no or a wrong token",
    }
    return " ".join(f"{words}: {sums[name]:,}." for name, words in sentences.items() if sums[name])


def absence_here() -> ProxyEvent | None:
    """The latest word of an own egress process that is away; of one that there no longer is, nobody hears."""
    return _absences().filter(home=versions.home_id(), process__lt=_wanted()).first()


def absence() -> ProxyEvent | None:
    """The same; without one here, of another home that keeps bottles in this database."""
    if here := absence_here():
        return here
    others = versions.other_homes()
    return (_absences().filter(home__in=others).first() or _silence(others)) if others else None


def _silence(homes: set[str]) -> ProxyEvent | None:
    """One of them that nothing was heard of for a while; where no proxy is wanted, nobody waits for that.

    No row: who could write it is gone. Only the database's clock counts, machines may differ.
    """
    last = RecordCursor.objects.filter(home__in=homes).values("home").annotate(heard=Max("heard_at"))
    silent = last.filter(heard__lt=Now() - SILENCE).order_by("-heard").first()
    if silent is None:
        return None
    text = (
        f"home {silent['home'][:8]}: its web process, or the whole machine, does not answer. What is decided "
        "for its bottles waits until it is back."
    )
    return ProxyEvent(kind=Kind.AWAY, at=silent["heard"], text=text, home=silent["home"])


def forget_unwanted() -> None:
    """Egress processes that this home no longer has are missed nowhere: other homes cannot know it."""
    for event in _absences().filter(home=versions.home_id(), process__gte=_wanted()):
        _note(Kind.BACK, f"egress process {event.process + 1} is no longer wanted", event.process)
    heard = RecordCursor.objects.filter(
        home=versions.home_id(), process__gte=_wanted(), heard_at__isnull=False
    )
    if heard.exists():  # a write that changes nothing would lock SQLite all the same
        heard.update(heard_at=None)
    if not settings.EGRESS_PROXY:
        versions.note_problems({}, lambda _: True)


def _wanted() -> int:
    """How many egress processes this home should have."""
    return versions.proxy_client().count if settings.EGRESS_PROXY else 0


def _absences() -> QuerySet[ProxyEvent]:
    """From the database: the reader before us may have noted it."""
    later = ProxyEvent.objects.filter(
        home=OuterRef("home"), process=OuterRef("process"), pk__gt=OuterRef("pk"),
        kind__in=(Kind.AWAY, Kind.BACK, Kind.RESTARTED),
    )  # fmt: skip
    return ProxyEvent.objects.filter(~Exists(later), kind=Kind.AWAY)


def _returned(process: EgressProcess, *, away: bool, last_boot: str) -> None:
    """Perhaps a new run of the egress process, which may serve older tables than the last one did.

    That it was started again is news only if the last run ended by itself.
    """
    live = {slug: state["version"] for slug, state in process.status()["bottles"].items()}
    versions.lower_live_versions(live, process.serves)
    if away:
        _note(Kind.BACK, f"{process.who} answers again", process.number)
    elif last_boot and not process.was_stopped(last_boot):
        _note(Kind.RESTARTED, f"{process.who} was restarted", process.number)


def _consequence(process: EgressProcess) -> str:
    if process.count == 1:
        return "Bottles reach nothing while it is away."
    living = Bottle.objects.exclude(state=Bottle.State.DELETED).filter(publication__home=versions.home_id())
    served = [slug for slug in living.order_by("slug").values_list("slug", flat=True) if process.serves(slug)]
    if not served:
        return "No bottle is with it."
    more = f" and {len(served) - NAMED} more" if len(served) > NAMED else ""
    return f"Bottles that are with it reach nothing: {', '.join(served[:NAMED])}{more}. All others do."


def _keep(batch: RecordBatch) -> None:
    """Those of this home's bottles, deleted ones too; another home's of the same name sent nothing here."""
    slugs = {record["bottle"] for record in batch.records}
    ours = Bottle.objects.filter(slug__in=slugs, publication__home=versions.home_id())
    bottles = dict(ours.order_by("pk").values_list("slug", "pk"))  # of several with one name, the youngest
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


def _note(kind: str, text: str, process: int = 0, *, event: ProxyEvent | None = None) -> ProxyEvent:
    """A new event, or another text of one."""
    home = versions.home_id()
    event = event or ProxyEvent(kind=kind, home=home, process=process)
    event.text = (f"home {home[:8]}: {text}" if versions.other_homes() else text)[:300]
    event.save()
    return event
