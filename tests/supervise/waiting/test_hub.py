"""The waiter hub: nothing decided is ever missed, and nobody else's decision wakes a call."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.db import connection

from botbottle.core import tasks
from botbottle.models import Bottle
from supervise.models import Proposal
from supervise.proposals import decisions, queries, waiting
from supervise.proposals.outcomes import Outcome
from supervise.proposals.submit import submit_proposal
from tests.support import ROOT

pytestmark = pytest.mark.django_db(transaction=True)
LONG = 30.0  # never reached unless a wake-up is lost


@pytest.fixture
async def hub() -> AsyncIterator[waiting.WaiterHub]:
    hub = waiting.WaiterHub()
    yield hub
    await hub.stop()


def ask(bottle: Bottle, host: str = "api.example.com") -> Proposal:
    return submit_proposal(bottle, "egress-block", {"host": host}, "to build").proposal


def approve(proposal: Proposal, operator: User) -> None:
    seen = queries.review_of(queries.get_proposal(proposal.pk)).seen_digest
    decisions.approve(proposal.pk, actor=operator, seen_digest=seen)


async def answer(hub: waiting.WaiterHub, proposal: Proposal, timeout: float = LONG) -> Outcome:  # noqa: ASYNC109
    async with hub.waiter(proposal.pk) as waiter:
        outcome = await queries.aoutcome(proposal.pk)
        while not outcome.is_final and await waiter.wait(timeout):
            outcome = await queries.aoutcome(proposal.pk)
        return outcome


async def occupied(hub: waiting.WaiterHub, by: int = 1) -> None:
    while len(hub) < by:
        await asyncio.sleep(0)


async def test_a_decision_wakes_the_call_that_waits_for_it(hub, agent_a, operator) -> None:
    proposal = await sync_to_async(ask)(agent_a)
    call = asyncio.create_task(answer(hub, proposal))
    await occupied(hub)
    await sync_to_async(approve)(proposal, operator)
    outcome = await call
    assert (outcome.status, outcome.applied, outcome.live_version) == ("approved", "live", 2)


async def test_a_decision_made_before_the_wait_is_seen(hub, agent_a, operator) -> None:
    proposal = await sync_to_async(ask)(agent_a)
    await sync_to_async(approve)(proposal, operator)
    assert (await answer(hub, proposal, timeout=0.01)).status == "approved"


async def test_a_decision_between_registering_and_reading_is_seen(hub, agent_a, operator) -> None:
    proposal = await sync_to_async(ask)(agent_a)
    async with hub.waiter(proposal.pk) as waiter:
        await sync_to_async(approve)(proposal, operator)
        assert await waiter.wait(LONG)


async def test_running_out_of_time_is_an_answer_not_an_error(hub, agent_a) -> None:
    proposal = await sync_to_async(ask)(agent_a)
    assert (await answer(hub, proposal, timeout=0.01)).status == "pending"
    assert len(hub) == 0


async def test_anothers_decision_does_not_wake_a_call(hub, agent_a, operator) -> None:
    mine = await sync_to_async(ask)(agent_a, "mine.example.com")
    other = await sync_to_async(ask)(agent_a, "other.example.com")
    waits = asyncio.create_task(answer(hub, mine))
    assert (await asyncio.gather(answer(hub, other), sync_to_async(approve)(other, operator)))[
        0
    ].status == "approved"
    assert not waits.done()
    waits.cancel()


async def test_a_cancelled_call_leaves_no_waiter_behind(hub, agent_a) -> None:
    proposal = await sync_to_async(ask)(agent_a)
    call = asyncio.create_task(answer(hub, proposal))
    await occupied(hub)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    assert len(hub) == 0


async def test_draining_wakes_everybody_and_those_who_come_later(hub, monkeypatch) -> None:
    for other_waker in ("_listen", "_sweep"):
        monkeypatch.setattr(hub, other_waker, asyncio.Event().wait)
    monkeypatch.setattr(waiting, "SUBSCRIBE_PATIENCE", 0.01)
    async with hub.waiter("a proposal") as early:
        hub.drain()
        assert await early.wait(LONG)
    async with hub.waiter("a proposal") as late:
        assert await late.wait(LONG)


async def test_a_stop_does_not_wait_for_the_subscription(hub, monkeypatch) -> None:
    async def call() -> bool:
        async with hub.waiter("a proposal") as waiter:
            return await waiter.wait(LONG)

    monkeypatch.setattr(waiting, "SUBSCRIBE_PATIENCE", 3600)
    monkeypatch.setattr(hub, "_listen", asyncio.Event().wait)  # Redis is away
    waits = asyncio.create_task(call())
    await occupied(hub)
    hub.drain()
    assert await asyncio.wait_for(waits, LONG)


async def test_a_broken_subscription_is_renewed_and_loses_nothing(
    hub, agent_a, operator, monkeypatch
) -> None:
    """The first subscription fails at once; the sweeper and the renewed one still find the decision."""
    real, failures = waiting.get_channel_layer, []

    def failing_once():
        if not failures:
            failures.append(1)
            raise ConnectionError("the layer is away")
        return real()

    monkeypatch.setattr(waiting, "get_channel_layer", failing_once)
    proposal = await sync_to_async(ask)(agent_a)
    call = asyncio.create_task(answer(hub, proposal))
    await occupied(hub)
    await sync_to_async(approve)(proposal, operator)
    assert (await call).status == "approved"
    assert failures


async def test_a_decision_without_any_message_is_found_by_the_sweeper(
    hub, agent_a, operator, monkeypatch
) -> None:
    """The subscription and the first sweep, which wake everybody, are over before the decision."""
    watch = _Watch()
    monkeypatch.setattr(waiting, "_CommitWatch", lambda: watch)
    monkeypatch.setattr("supervise.events._send", lambda event: None)
    proposal = await sync_to_async(ask)(agent_a)
    async with hub.waiter(proposal.pk) as waiter:
        await watch.begun.wait()
        while await waiter.wait(0):
            pass
        await sync_to_async(approve)(proposal, operator)
        watch.committed.set()
        assert await waiter.wait(LONG)
        assert (await queries.aoutcome(proposal.pk)).status == "approved"


async def test_nothing_runs_while_nobody_waits(hub, agent_a, monkeypatch) -> None:
    watch = _Watch()
    sweeps: list[int] = []
    monkeypatch.setattr(waiting, "_CommitWatch", lambda: watch)
    monkeypatch.setattr(waiting, "_newest_seq", _zero)
    monkeypatch.setattr(waiting, "_after", partial(_count, sweeps))
    proposal = await sync_to_async(ask)(agent_a)
    async with hub.waiter(proposal.pk):
        await watch.begun.wait()
    watch.begun.clear()
    watch.committed.set()  # the sweep that was under way ends
    async with asyncio.timeout(LONG):
        while not sweeps:
            await asyncio.sleep(0)
    for _ in range(10):  # no thread is involved: it has taken its next step by now
        await asyncio.sleep(0)
    assert not watch.begun.is_set()
    assert len(sweeps) == 1


class _Watch:
    """Returns when the test says that something was committed."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.committed = asyncio.Event()

    async def next_commit(self) -> None:
        self.begun.set()
        await self.committed.wait()


async def _zero() -> int:
    return 0


async def _count(sweeps: list[int], seq: int) -> list[tuple[int, object]]:
    sweeps.append(seq)
    return []


async def test_many_waiters_hold_no_threads(hub, agent_a) -> None:
    proposals = [await sync_to_async(ask)(agent_a, f"h{number}.example.com") for number in range(50)]
    before = threading.active_count()
    calls = [asyncio.create_task(answer(hub, proposal)) for proposal in proposals]
    await occupied(hub, by=50)
    assert threading.active_count() <= before + 2
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    assert len(hub) == 0


async def test_stopping_ends_a_task_that_swallows_a_cancellation() -> None:
    """As the Redis client does while it connects: the server's end must not wait for it for ever."""

    async def connect() -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(3600)
        await asyncio.sleep(3600)

    task = asyncio.create_task(connect())
    await asyncio.sleep(0)
    async with asyncio.timeout(30):
        await tasks.cancel_and_wait([task])
    assert task.cancelled()
    await tasks.cancel_and_wait([])


@pytest.mark.process
async def test_a_decision_in_another_process_wakes_the_call(hub, agent_a, operator) -> None:
    proposal = await sync_to_async(ask)(agent_a)
    call = asyncio.create_task(decision(hub, proposal))
    await occupied(hub)
    await sync_to_async(_approve_elsewhere)(proposal, operator)
    assert (await call).status == "approved"


async def decision(hub: waiting.WaiterHub, proposal: Proposal) -> Outcome:
    """Not what comes of it: nobody applies anything here."""
    async with hub.waiter(proposal.pk) as waiter:
        outcome = await queries.aoutcome(proposal.pk)
        while outcome.status == Proposal.Status.PENDING and await waiter.wait(LONG):
            outcome = await queries.aoutcome(proposal.pk)
        return outcome


def _approve_elsewhere(proposal: Proposal, operator: User) -> None:
    """A fresh interpreter on the same database, with no channel layer in common unless there is Redis."""
    script = f"""
import django; django.setup()
from django.conf import settings
settings.DATABASES["default"]["NAME"] = {str(connection.settings_dict["NAME"])!r}
from django.contrib.auth.models import User
from supervise.proposals import decisions, queries
seen = queries.review_of(queries.get_proposal("{proposal.pk}")).seen_digest
decisions.approve("{proposal.pk}", actor=User.objects.get(pk={operator.pk}), seen_digest=seen)
"""
    subprocess.run(
        [sys.executable, "-c", script],
        check=True,
        cwd=ROOT,
        timeout=60,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"},
    )


async def test_what_is_decided_before_the_sweep_begins_is_found(hub, agent_a, operator, monkeypatch) -> None:
    """By another process, after the call's first look: no message tells of it, and its number is not new."""
    monkeypatch.setattr("supervise.events._send", lambda event: None)
    proposal, looked, newest_seq = await sync_to_async(ask)(agent_a), asyncio.Event(), waiting._newest_seq

    async def after_a_decision() -> int:
        await looked.wait()
        await sync_to_async(approve)(proposal, operator)
        return await newest_seq()

    monkeypatch.setattr(waiting, "_newest_seq", after_a_decision)
    async with hub.waiter(proposal.pk) as waiter:
        assert await waiter.wait(LONG)  # the subscription is new
        assert (await queries.aoutcome(proposal.pk)).status == "pending"
        looked.set()
        assert await waiter.wait(LONG)
        assert (await queries.aoutcome(proposal.pk)).status == "approved"
