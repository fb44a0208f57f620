"""What this process decides itself is handed to the calls that wait in it, without another look."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User

from botbottle.models import Bottle
from egress.tables import publishing
from supervise import events
from supervise.models import Proposal
from supervise.proposals import decisions
from supervise.proposals.outcomes import Outcome
from supervise.proposals.waiting import WaiterHub, hub
from tests.support.proposals import ask, seen

pytestmark = pytest.mark.django_db(transaction=True)
LONG = 30.0  # never reached unless nothing is told


@pytest.fixture
async def waiting_hub() -> AsyncIterator[WaiterHub]:
    """The process's own hub: decisions are told to it and to no other."""
    yield hub
    await hub.stop()


async def told_by(proposal: Proposal, change: Callable[[], Any]) -> Outcome:
    async with hub.waiter(proposal.pk) as waiter:
        change_made = asyncio.create_task(sync_to_async(change)())
        while waiter.outcome is None:
            assert await waiter.wait(LONG)
        await change_made
        return waiter.outcome


def verb(name: str, proposal: Proposal, operator: User) -> Callable[[], Any]:
    if name == "withdraw":
        return partial(decisions.withdraw, proposal.pk, bottle=proposal.bottle)
    if name == "expire":
        return partial(decisions.expire, proposal.pk, reason="Nobody decided in time.")
    decide = getattr(decisions, name)
    return partial(decide, proposal.pk, actor=operator, seen_digest=seen(proposal), note="because")


@pytest.mark.parametrize(
    ("name", "end"),
    [
        ("approve", ("approved", "live")),
        ("reject", ("rejected", "nothing")),
        ("withdraw", ("withdrawn", "nothing")),
        ("expire", ("expired", "nothing")),
    ],
)
async def test_every_end_of_a_proposal_is_told_whole(
    waiting_hub: WaiterHub, agent_a: Bottle, operator: User, name: str, end: tuple[str, str]
) -> None:
    proposal = await sync_to_async(ask)(agent_a)
    outcome = await told_by(proposal, await sync_to_async(verb)(name, proposal, operator))
    assert (outcome.proposal_id, outcome.status, outcome.applied) == (str(proposal.pk), *end)
    assert outcome.is_final


async def test_an_approval_that_cannot_be_applied_is_told_as_such(
    waiting_hub: WaiterHub, agent_a: Bottle, operator: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(bottle: Bottle, *_: object) -> int:
        raise publishing.NotPublished("the disk is full")

    monkeypatch.setattr(publishing, "publish", fail)
    proposal = await sync_to_async(ask)(agent_a)
    outcome = await told_by(proposal, await sync_to_async(verb)("approve", proposal, operator))
    assert (outcome.status, outcome.applied, outcome.live_version) == ("approved", "failed", None)
    assert "the disk is full" in outcome.explanation


async def test_nothing_is_told_of_anothers_proposal(
    waiting_hub: WaiterHub, agent_a: Bottle, operator: User
) -> None:
    mine, other = await sync_to_async(ask)(agent_a), await sync_to_async(ask)(agent_a, "other.example.com")
    async with hub.waiter(mine.pk) as waiter:
        await told_by(other, await sync_to_async(verb)("approve", other, operator))
        assert waiter.outcome is None


async def test_a_vote_is_not_an_end(
    waiting_hub: WaiterHub, agent_a: Bottle, operator: User, settings: Any
) -> None:
    settings.SUPERVISE_QUORUM = 2
    auth = {"scheme": "Bearer", "token_ref": "TOKEN"}
    proposal = await sync_to_async(ask)(agent_a, auth=auth)
    async with hub.waiter(proposal.pk) as waiter:
        await sync_to_async(await sync_to_async(verb)("approve", proposal, operator))()
        assert waiter.outcome is None


def test_deciding_where_nobody_waits_tells_nobody(agent_a: Bottle, operator: User) -> None:
    proposal = ask(agent_a)
    verb("reject", proposal, operator)()
    assert len(hub) == 0


async def test_a_message_that_cannot_be_sent_by_the_loop_is_noted(
    waiting_hub: WaiterHub, agent_a: Bottle, operator: User, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    async def fail(event: dict[str, Any]) -> None:
        raise ConnectionError("no Redis")

    proposal = await sync_to_async(ask)(agent_a)
    decide = await sync_to_async(verb)("reject", proposal, operator)
    monkeypatch.setattr(events, "_send_to_groups", fail)
    assert (await told_by(proposal, decide)).status == "rejected"
    assert "sweeper" in caplog.text
