"""High-risk grants that need several operators (SUPERVISE_QUORUM)."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User

from botbottle.models import Bottle
from egress.tables import versions
from supervise.models import Approval, AuditEvent, Decision, Proposal
from tests.support.proposals import ask, ask_image

pytestmark = pytest.mark.django_db
AUTH = {"scheme": "Bearer", "token_ref": "GITHUB_TOKEN"}


@pytest.fixture(autouse=True)
def two_needed(settings: Any) -> None:
    settings.SUPERVISE_QUORUM = 2


@pytest.mark.parametrize(
    "ask_for",
    [
        lambda bottle: ask(bottle, auth=AUTH),
        lambda bottle: ask(bottle, "*.example.com"),
        ask_image,
    ],
    ids=["auth", "wildcard", "capability"],
)
def test_a_high_risk_needs_two_operators(
    agent_a: Bottle, second_operator: User, approve: Any, ask_for: Any
) -> None:
    proposal = ask_for(agent_a)
    first = approve(proposal, note="I looked.")
    assert isinstance(first, Approval)
    assert Proposal.objects.get(pk=proposal.pk).is_pending
    assert AuditEvent.objects.latest("seq").details["notes"] == "I looked."
    second = approve(proposal, actor=second_operator)
    assert isinstance(second, Decision)
    assert second.actor == second_operator
    assert list(AuditEvent.objects.filter(action="approval").values_list("actor_name", flat=True)) == [
        "otto",
        "olivia",
    ]


def test_one_operator_is_not_two(agent_a: Bottle, approve: Any) -> None:
    proposal = ask_image(agent_a)
    for _ in range(3):
        assert isinstance(approve(proposal), Approval)
    assert Approval.objects.count() == 1


def test_less_risk_needs_one(agent_a: Bottle, approve: Any) -> None:
    assert isinstance(approve(ask(agent_a)), Decision)


def test_a_yes_to_something_else_does_not_count(
    agent_a: Bottle, second_operator: User, approve: Any, modify: Any
) -> None:
    proposal = ask(agent_a, auth=AUTH, path_allowlist=["/a", "/b"])
    assert isinstance(approve(proposal), Approval)
    edited = {"host": "api.example.com", "auth": AUTH, "path_allowlist": ["/a"]}
    assert isinstance(modify(proposal, actor=second_operator, **edited), Approval)
    decision = modify(proposal, **edited)
    assert isinstance(decision, Decision)
    assert decision.status == "modified"


def test_two_operators_who_edit_differently_have_not_agreed(
    agent_a: Bottle, second_operator: User, modify: Any
) -> None:
    proposal = ask(agent_a, auth=AUTH, path_allowlist=["/a", "/b"])
    edited = {"host": "api.example.com", "auth": AUTH}
    assert isinstance(modify(proposal, path_allowlist=["/a"], **edited), Approval)
    assert isinstance(modify(proposal, actor=second_operator, path_allowlist=["/b"], **edited), Approval)
    assert Proposal.objects.get(pk=proposal.pk).is_pending
    assert isinstance(modify(proposal, path_allowlist=["/b"], **edited), Decision)


def test_a_yes_before_the_state_changed_does_not_count(
    agent_a: Bottle, second_operator: User, approve: Any
) -> None:
    proposal = ask(agent_a, auth=AUTH)
    assert isinstance(approve(proposal), Approval)
    approve(ask(agent_a, path_allowlist=["/v1"]))
    assert isinstance(approve(proposal, actor=second_operator), Approval)
    assert isinstance(approve(proposal), Decision)


@pytest.mark.parametrize("lost", ["permission", "account"])
def test_the_yes_of_who_may_no_longer_decide_does_not_count(
    agent_a: Bottle, operator: User, second_operator: User, approve: Any, *, lost: str
) -> None:
    proposal = ask_image(agent_a)
    approve(proposal)
    if lost == "permission":
        operator.user_permissions.clear()
    else:
        User.objects.filter(pk=operator.pk).update(is_active=False)
    assert isinstance(approve(proposal, actor=second_operator), Approval)


def test_an_edit_that_adds_a_credential_needs_two(agent_a: Bottle, modify: Any) -> None:
    made = modify(ask(agent_a), host="api.example.com", auth=AUTH)
    assert isinstance(made, Approval)
    assert versions.current(agent_a).version == 1


def test_an_edit_that_drops_the_credential_needs_one(agent_a: Bottle, modify: Any) -> None:
    assert isinstance(modify(ask(agent_a, auth=AUTH), host="api.example.com"), Decision)


def test_widening_a_route_that_carries_a_credential_needs_two(
    agent_a: Bottle, second_operator: User, approve: Any
) -> None:
    first = ask(agent_a, auth=AUTH, path_allowlist=["/a"])
    approve(first)
    approve(first, actor=second_operator)
    assert isinstance(approve(ask(agent_a, path_allowlist=["/b"])), Approval)
