"""A bottle's record from creation to deletion."""

from __future__ import annotations

from functools import partial

import pytest

from botbottle.models import Bottle
from supervise.bottles import records as bottles
from supervise.errors import AlreadyDecided
from supervise.models import AuditEvent, Decision, Proposal
from supervise.proposals import decisions
from tests.support.proposals import ask, seen
from tests.support.threads import together

pytestmark = pytest.mark.django_db


def test_only_the_digest_of_a_token_is_kept() -> None:
    made = bottles.create("one", author="tests")
    assert made.token.startswith("bbt_")
    assert made.bottle.accepts(made.token)
    assert not made.bottle.accepts(made.token + "x")
    assert made.token not in str(Bottle.objects.values())
    assert made.token not in str(list(AuditEvent.objects.values()))


def test_a_new_token_ends_the_old_one(agent_a: Bottle) -> None:
    old = bottles.rotate_token("agent-a", author="tests").token
    new = bottles.rotate_token("agent-a", author="tests").token
    agent_a.refresh_from_db()
    assert agent_a.accepts(new)
    assert not agent_a.accepts(old)


@pytest.mark.parametrize("slug", ["", "A", "-a", "a-", "a_b", "a.b", "a/b", "é", "a" * 41, "a\n", "a\x00"])
def test_a_bad_name_is_refused(slug: str) -> None:
    with pytest.raises(bottles.BadBottle):
        bottles.create(slug, author="tests")


def test_deleting_ends_open_proposals_and_keeps_history(agent_a: Bottle) -> None:
    proposal = ask(agent_a)
    assert bottles.delete("agent-a", author="olivia") == 1
    decision = Decision.objects.get(proposal=proposal)
    assert (decision.status, decision.notes) == ("expired", "The bottle was deleted.")
    assert Bottle.objects.get(pk=agent_a.pk).state == Bottle.State.DELETED
    with pytest.raises(bottles.NoSuchBottle):
        bottles.get("agent-a")


def test_a_name_is_free_again_after_its_bottle_is_deleted(agent_a: Bottle) -> None:
    with pytest.raises(bottles.BadBottle, match="already"):
        bottles.create("agent-a", author="tests")
    bottles.delete("agent-a", author="tests")
    heir = bottles.create("agent-a", author="tests").bottle
    assert heir.pk != agent_a.pk


@pytest.mark.django_db(transaction=True)
def test_a_name_is_given_once_at_one_moment() -> None:
    results = together([partial(bottles.create, "one", author="tests")] * 4)
    assert sum(isinstance(result, bottles.Credentials) for result in results) == 1
    assert sum(isinstance(result, bottles.BadBottle) for result in results) == 3


@pytest.mark.django_db(transaction=True)
def test_a_bottle_is_deleted_once_at_one_moment(agent_a: Bottle) -> None:
    ask(agent_a)
    results = together([partial(bottles.delete, "agent-a", author="tests")] * 4)
    assert sorted(str(result)[:15] for result in results) == ["1", *["There is no bot"] * 3]
    assert AuditEvent.objects.filter(action="bottle deleted").count() == 1


@pytest.mark.django_db(transaction=True)
def test_a_decision_and_a_deletion_at_one_moment_leave_nothing_open(
    agent_a: Bottle, operator: object
) -> None:
    proposal = ask(agent_a)
    yes = partial(decisions.approve, proposal.pk, actor=operator, seen_digest=seen(proposal))  # type: ignore[arg-type]
    decided, expired = together([yes, partial(bottles.delete, "agent-a", author="tests")])
    assert Proposal.objects.get().status == ("expired" if expired else "approved")
    assert isinstance(decided, AlreadyDecided if expired else Decision)
