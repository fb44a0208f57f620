"""What happens without anybody asking."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.utils import timezone

from botbottle.models import Bottle
from egress.models import TrafficRecord
from egress.tables import homes
from supervise import background, events
from supervise.models import Decision, Proposal
from supervise.proposals import waiting
from tests.support.proposals import ask


@pytest.mark.django_db
def test_an_old_proposal_expires_and_a_young_one_stays(agent_a: Bottle, settings: Any) -> None:
    settings.SUPERVISE_PROPOSAL_TTL_SECONDS = 3600
    old, young = ask(agent_a), ask(agent_a, "young.example.com")
    Proposal.objects.filter(pk=old.pk).update(created_at=timezone.now() - timedelta(seconds=3601))
    assert background.expire_old() == 1
    assert Decision.objects.get().proposal == old
    assert Decision.objects.get().notes == "Nobody decided in time."
    assert Proposal.objects.get(pk=young.pk).is_pending
    assert background.expire_old() == 0


@pytest.mark.django_db(transaction=True)
def test_a_round_forgets_records_past_their_age(agent_a: Bottle, settings: Any) -> None:
    settings.EGRESS_RECORD_DAYS = 2
    for days in (1, 3):
        TrafficRecord.objects.create(
            bottle=agent_a, at=timezone.now() - timedelta(days=days), path=f"/{days}", table_version=1,
            status=200, bytes_out=0, bytes_in=0, duration_ms=1,
        )  # fmt: skip
    background.run_maintenance()
    assert TrafficRecord.objects.get().path == "/1"


@pytest.fixture
async def worker(
    settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[background.BackgroundJobs]:
    settings.BOTTLE_HOME = tmp_path
    monkeypatch.setattr(background, "reconcile_bottles", lambda: None)
    monkeypatch.setattr(background.DiskWatch, "work", lambda self: False)
    worker = background.BackgroundJobs()
    yield worker
    await worker.stop()
    for thread in threading.enumerate():
        if thread.name in (background.RetryJob.name, background.ReconcileJob.name, background.DiskWatch.name):
            await asyncio.to_thread(thread.join)  # it may hold a connection to the database


@pytest.mark.django_db(transaction=True)
async def test_it_goes_on_after_a_round_that_failed(
    worker: background.BackgroundJobs, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    rounds: list[int] = []
    third = Event()

    def run_maintenance(*, at_once: bool) -> None:
        rounds.append(1)
        if len(rounds) == 1:
            raise RuntimeError("unforeseen")
        if len(rounds) == 3:
            third.set()

    monkeypatch.setattr(background, "run_maintenance", run_maintenance)
    monkeypatch.setattr(background.RetryJob, "pause_seconds", 0.001)
    worker.start()
    assert await asyncio.to_thread(third.wait, 30)
    assert "A round of retry-job failed" in caplog.text


@pytest.mark.django_db(transaction=True)
async def test_a_round_that_hangs_does_not_hold_up_the_calls_that_wait(
    worker: background.BackgroundJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sweeper's queries must not stand in line behind a proxy that never answers."""
    hangs, answers = Event(), Event()

    def run_maintenance(*, at_once: bool) -> None:
        hangs.set()
        answers.wait(60)

    monkeypatch.setattr(background, "run_maintenance", run_maintenance)
    worker.start()
    await asyncio.to_thread(hangs.wait, 30)
    try:
        async with asyncio.timeout(30):
            await waiting._newest_seq()
    finally:
        answers.set()


@pytest.mark.django_db(transaction=True)
async def test_a_call_from_another_home_is_not_left_for_the_next_round(
    worker: background.BackgroundJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_maintenance(*, at_once: bool) -> None:
        rounds.append(at_once)

    async def tended(times: int) -> None:
        async with asyncio.timeout(30):
            while rounds.count(True) < times:
                await asyncio.sleep(0.01)

    rounds: list[bool] = []
    monkeypatch.setattr(background, "run_maintenance", run_maintenance)
    monkeypatch.setattr(background.RetryJob, "pause_seconds", 3600.0)
    worker.start()
    await tended(1)  # what was left before it came
    await sync_to_async(events.call_home)(homes.home_id())
    await tended(2)


async def test_it_may_be_stopped_before_it_was_started() -> None:
    await background.BackgroundJobs().stop()
