"""Reject and stop asking: the same ask gets the earlier answer at once, until an operator lifts it."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User

from botbottle.models import Bottle
from supervise import audit, audit_check
from supervise.errors import NoSuchProposal, NotPermitted
from supervise.models import AuditEvent, Proposal, StandingRefusal
from supervise.proposals import decisions, queries, standing_refusals
from supervise.proposals.submit import submit_proposal
from tests.support.proposals import ask, seen

pytestmark = pytest.mark.django_db


@pytest.fixture
def refused(agent_a: Bottle, operator: User) -> Proposal:
    proposal = ask(agent_a)
    decisions.reject(
        proposal.pk, actor=operator, seen_digest=seen(proposal), note="Use the mirror.", stop_asking=True
    )
    return proposal


def ask_again(bottle: Bottle, **more: Any) -> Any:
    return submit_proposal(bottle, "egress-block", {"host": "api.example.com", **more}, "Please!")


def test_the_same_ask_is_answered_with_the_earlier_reason_and_makes_no_card(
    refused: Proposal, agent_a: Bottle
) -> None:
    events = audit.newest_seq()
    filed = [ask_again(agent_a) for _ in range(3)][-1]
    assert filed.proposal == refused
    outcome = queries.outcome(filed.proposal.pk)
    assert (outcome.status, outcome.notes, outcome.is_final) == ("rejected", "Use the mirror.", True)
    assert Proposal.objects.count() == 1
    standing = StandingRefusal.objects.get()
    assert standing.repeats == 3
    assert standing.last_asked_at
    assert audit.newest_seq() == events, "an agent that repeats itself does not fill the record"


def test_another_ask_or_another_bottle_still_makes_a_card(
    refused: Proposal, agent_a: Bottle, agent_b: Bottle
) -> None:
    assert ask_again(agent_a, methods=["GET"]).proposal.is_pending
    assert ask_again(agent_b).proposal.is_pending


def test_a_plain_rejection_stops_nothing(agent_a: Bottle, operator: User) -> None:
    proposal = ask(agent_a)
    decisions.reject(proposal.pk, actor=operator, seen_digest=seen(proposal), note="Not now.")
    assert ask_again(agent_a).proposal.is_pending


def test_an_operator_lifts_it_once(refused: Proposal, agent_a: Bottle, operator: User) -> None:
    standing = StandingRefusal.objects.get()
    standing_refusals.lift(standing.pk, actor=operator)
    assert ask_again(agent_a).proposal.is_pending
    with pytest.raises(NoSuchProposal, match="already lifted"):
        standing_refusals.lift(standing.pk, actor=operator)
    assert [event.action for event in AuditEvent.objects.order_by("seq")] == [
        "bottle created", "filed", "rejected", "stop asking", "refusal lifted", "filed",
    ]  # fmt: skip
    assert audit_check.verify()[1] is None


def test_a_viewer_lifts_nothing(refused: Proposal, viewer: User) -> None:
    with pytest.raises(NotPermitted):
        standing_refusals.lift(StandingRefusal.objects.get().pk, actor=viewer)
    assert standing_refusals.standing().exists()


def test_it_can_stand_again_after_it_was_lifted(refused: Proposal, agent_a: Bottle, operator: User) -> None:
    standing_refusals.lift(StandingRefusal.objects.get().pk, actor=operator)
    again = ask(agent_a)
    decisions.reject(again.pk, actor=operator, seen_digest=seen(again), note="Still no.", stop_asking=True)
    assert queries.outcome(ask_again(agent_a).proposal.pk).notes == "Still no."


def test_an_operators_own_yes_ends_it(refused: Proposal, agent_a: Bottle, operator: User) -> None:
    filed = submit_proposal(
        agent_a, "egress-block", {"host": "api.example.com"}, "", operator="olivia"
    ).proposal
    assert filed.is_pending
    decisions.approve(filed.pk, actor=operator, seen_digest=seen(filed))
    assert not standing_refusals.standing().exists()
    assert AuditEvent.objects.filter(action="filed for the bottle", actor_name="olivia").exists()
