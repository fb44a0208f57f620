"""Many deciders and many asks at the same moment, on the real database."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import transaction

from botbottle.models import Bottle
from egress.tables import versions
from supervise import audit_check
from supervise.errors import AlreadyDecided, StaleReview
from supervise.models import Approval, AuditEvent, Decision, Proposal
from supervise.proposals import decisions, queries
from tests.support.proposals import ask, ask_image, seen
from tests.support.threads import together

pytestmark = pytest.mark.django_db(transaction=True)


def test_of_two_operators_one_decides_and_the_other_learns_who(
    agent_a: Bottle, operator: User, second_operator: User
) -> None:
    for number in range(5):
        proposal = ask(agent_a, f"n{number}.example.com")
        digest = seen(proposal)
        results = together(
            [
                partial(decisions.approve, proposal.pk, actor=actor, seen_digest=digest)
                for actor in (operator, second_operator)
            ]
        )
        (won,) = [result for result in results if isinstance(result, Decision)]
        (lost,) = [result for result in results if isinstance(result, AlreadyDecided)]
        assert lost.decision == won
        assert str(lost) == f"Already approved by {won.actor_name}."
        assert versions.current(agent_a).version == number + 2


def test_of_every_kind_of_ending_exactly_one_happens(
    agent_a: Bottle, operator: User, second_operator: User
) -> None:
    proposal = ask(agent_a)
    digest = seen(proposal)
    endings: list[Callable[[], Any]] = [
        partial(decisions.approve, proposal.pk, actor=operator, seen_digest=digest),
        partial(
            decisions.modify,
            proposal.pk,
            actor=second_operator,
            seen_digest=digest,
            payload={"host": "api.example.com", "methods": ["GET"]},
        ),
        partial(decisions.reject, proposal.pk, actor=operator, seen_digest=digest, note="No."),
        partial(decisions.withdraw, proposal.pk, bottle=agent_a),
        partial(decisions.expire, proposal.pk, reason="Too late."),
    ]
    results = together(endings)
    assert Counter(type(result).__name__ for result in results) == {"Decision": 1, "AlreadyDecided": 4}
    decision = Decision.objects.get()
    assert Proposal.objects.get().status == decision.status
    assert AuditEvent.objects.filter(proposal_id=proposal.pk, action=decision.status).count() == 1


def test_a_claim_alone_is_won_once(agent_a: Bottle, operator: User) -> None:
    """Also by a caller that looked before the lock and still takes the proposal for pending."""
    proposal = ask(agent_a)
    stale = Proposal.objects.select_related("bottle").get(pk=proposal.pk)
    decisions.approve(proposal.pk, actor=operator, seen_digest=seen(proposal))
    with pytest.raises(AlreadyDecided), transaction.atomic():
        decisions._record(stale, Proposal.Status.REJECTED, actor=operator, notes="No.")
    assert Proposal.objects.get().status == "approved"


def test_two_asks_for_one_host_are_merged_or_looked_at_again(
    agent_a: Bottle, operator: User, second_operator: User
) -> None:
    proposals = [ask(agent_a, path_allowlist=[path]) for path in ("/a", "/b")]
    results = together(
        [
            partial(decisions.approve, proposal.pk, actor=actor, seen_digest=seen(proposal))
            for proposal, actor in zip(proposals, (operator, second_operator), strict=True)
        ]
    )
    assert Counter(type(result) for result in results) == {Decision: 1, StaleReview: 1}
    assert versions.current(agent_a).version == 2


def test_two_last_votes_make_one_decision(
    agent_a: Bottle, operator: User, second_operator: User, settings: Any
) -> None:
    settings.SUPERVISE_QUORUM = 2
    proposal = ask_image(agent_a)
    digest = seen(proposal)
    results = together(
        [
            partial(decisions.approve, proposal.pk, actor=actor, seen_digest=digest)
            for actor in (operator, second_operator)
        ]
    )
    assert Counter(type(result) for result in results) == {Approval: 1, Decision: 1}


def test_asks_and_decisions_from_eight_threads_meet_no_locked_database(
    agent_a: Bottle, agent_b: Bottle, operator: User
) -> None:
    def work(number: int) -> int:
        bottle = agent_a if number % 2 else agent_b
        for step in range(4):
            proposal = ask(bottle, f"n{number}-{step}.example.com")
            decisions.approve(proposal.pk, actor=operator, seen_digest=seen(proposal))
        return 4

    assert together([partial(work, number) for number in range(8)]) == [4] * 8
    assert Decision.objects.filter(applied="live").count() == 32
    for bottle in (agent_a, agent_b):
        assert versions.current(bottle).version == 17
        assert queries.live_routes(bottle)["version"] == 17
        assert len(versions.current(bottle).table.routes) == 16
    assert audit_check.verify()[1] is None
