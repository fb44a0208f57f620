"""Filing: one card for equal asks, within limits, and nothing an agent writes can break it."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.db import connection

from botbottle.models import Bottle
from egress.tables import versions
from supervise import audit_check
from supervise.bottles import records as bottles
from supervise.errors import AskedTooOften, BadAsk, NoRoom, TooManyPending
from supervise.models import AuditEvent, Proposal
from supervise.proposals import decisions, submit
from supervise.proposals.submit import submit_proposal
from tests.support.full_disk import AMPLE, SHORT, pretend
from tests.support.proposals import HOSTILE, ask, ask_gate, ask_image
from tests.support.threads import together

pytestmark = pytest.mark.django_db


def test_a_filed_ask_is_pending_and_recorded(agent_a: Bottle) -> None:
    filed = submit_proposal(agent_a, "egress-block", {"host": "api.example.com"}, "I need it.")
    assert not filed.joined
    proposal = Proposal.objects.get()
    assert (proposal, proposal.status, proposal.base_version) == (filed.proposal, "pending", 1)
    event = AuditEvent.objects.latest("seq")
    assert (event.action, event.actor_name, event.bottle_slug) == ("filed", "bottle agent-a", "agent-a")
    assert event.details == {"tool": "egress-block", "digest": proposal.digest}


def test_an_equal_ask_joins_the_open_one(agent_a: Bottle) -> None:
    first = ask(agent_a, "API.example.com", why="One reason.", methods=["get", "POST"])
    again = submit_proposal(
        agent_a, "egress-block", {"methods": ["GET", "POST"], "host": "api.example.com"}, "Another reason."
    )
    assert again.joined
    assert again.proposal == first
    joined = Proposal.objects.get()
    assert (joined.joined, joined.justification) == (1, "One reason.")


@pytest.mark.parametrize(
    "other",
    [
        lambda a, b: ask(b),
        lambda a, b: ask(a, methods=["GET"]),
        lambda a, b: ask_gate(a, "https://api.example.com/"),
    ],
    ids=["another bottle", "another ask", "another tool"],
)
def test_a_different_ask_is_a_card_of_its_own(agent_a: Bottle, agent_b: Bottle, other: Any) -> None:
    ask(agent_a)
    other(agent_a, agent_b)
    assert Proposal.objects.count() == 2


def test_a_decided_ask_is_not_joined(agent_a: Bottle) -> None:
    first = ask(agent_a)
    decisions.withdraw(first.pk, bottle=agent_a)
    assert ask(agent_a) != first


def test_a_bottle_may_have_so_many_open_proposals(agent_a: Bottle, agent_b: Bottle, settings: Any) -> None:
    settings.SUPERVISE_MAX_PENDING = 2
    first = ask(agent_a, "one.example.com")
    ask(agent_a, "two.example.com")
    with pytest.raises(TooManyPending, match="withdraw-proposal"):
        ask(agent_a, "three.example.com")
    assert ask(agent_a, "one.example.com") == first  # joining adds no card
    ask(agent_b, "three.example.com")
    decisions.withdraw(first.pk, bottle=agent_a)
    ask(agent_a, "three.example.com")
    assert Proposal.objects.filter(bottle=agent_a).count() == 3


def test_a_bottle_may_ask_so_often(agent_a: Bottle, agent_b: Bottle, settings: Any) -> None:
    settings.SUPERVISE_MAX_PER_MINUTE = 2
    for host in ("one.example.com", "two.example.com"):
        decisions.withdraw(ask(agent_a, host).pk, bottle=agent_a)
    with pytest.raises(AskedTooOften, match="Wait a minute"):
        ask(agent_a, "three.example.com")
    ask(agent_b)
    newest = Proposal.objects.filter(bottle=agent_a).latest("created_at")
    Proposal.objects.filter(pk=newest.pk).update(created_at=newest.created_at - timedelta(seconds=61))
    ask(agent_a, "three.example.com")


def test_a_deleted_bottle_files_nothing(agent_a: Bottle) -> None:
    bottles.delete("agent-a", author="tests")
    with pytest.raises(BadAsk, match="deleted"):
        ask(agent_a)
    assert not Proposal.objects.exists()


@pytest.mark.parametrize("text", [HOSTILE, "x" * 1_000_000, "\x00" * 10, "\udfff\ud800", "𝕏" * 1000])
def test_whatever_an_agent_writes_is_stored(agent_a: Bottle, text: str) -> None:
    for proposal in (ask(agent_a, why=text), ask_image(agent_a, f"FROM x\n# {text}")):
        proposal.refresh_from_db()
        stored = proposal.justification + str(proposal.payload.get("dockerfile", ""))
        assert "\x00" not in stored
        assert stored.encode().decode() == stored
    assert audit_check.verify()[1] is None


def test_a_long_ask_is_read_before_the_lock_is_taken(
    agent_a: Bottle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else waits while an agent's text is read."""
    steps: list[str] = []
    lock, read = versions.lock, submit.review
    monkeypatch.setattr(versions, "lock", lambda bottle: steps.append("locked") or lock(bottle))
    monkeypatch.setattr(submit, "review", lambda *args: steps.append("read") or read(*args))
    ask_image(agent_a)
    assert steps == ["read", "locked"]


@pytest.mark.django_db(transaction=True)
def test_equal_asks_at_one_moment_make_one_card(agent_a: Bottle) -> None:
    results = together([partial(ask, agent_a)] * 8)
    assert len({proposal.pk for proposal in results}) == 1
    assert Proposal.objects.get().joined == 7


@pytest.mark.django_db(transaction=True)
def test_asks_at_one_moment_do_not_pass_the_limit_together(agent_a: Bottle, settings: Any) -> None:
    settings.SUPERVISE_MAX_PENDING = 3
    results = together([partial(ask, agent_a, f"n{number}.example.com") for number in range(8)])
    assert sum(isinstance(result, Proposal) for result in results) == 3
    assert sum(isinstance(result, TooManyPending) for result in results) == 5


def test_on_a_short_disk_only_operators_file(agent_a: Bottle, monkeypatch: pytest.MonkeyPatch) -> None:
    """A database elsewhere has its own disk, and says itself when that is full."""
    pending = ask(agent_a)
    pretend(monkeypatch, SHORT)
    if connection.vendor == "sqlite":
        for host in ("new.example.com", "api.example.com"):
            with pytest.raises(NoRoom, match=r"disk of the operator's machine is full.*nothing was changed"):
                ask(agent_a, host)
    else:
        assert ask(agent_a) == pending
    if connection.vendor == "sqlite":
        with pytest.raises(NoRoom):
            decisions.withdraw(pending.pk, bottle=agent_a)
    pending.refresh_from_db()
    assert (pending.joined, Proposal.objects.count()) == (connection.vendor != "sqlite", 1)
    payload = {"host": "new.example.com"}
    assert submit_proposal(agent_a, "egress-block", payload, "", operator="olivia").proposal.is_pending
    pretend(monkeypatch, AMPLE)
    assert ask(agent_a, "later.example.com").is_pending
