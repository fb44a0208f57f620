"""Approve, modify, reject, withdraw, expire: who may, what it changes, and that it happens once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth.models import User

from botbottle.models import Bottle
from egress.tables import versions
from supervise.errors import (
    AlreadyDecided,
    BadAsk,
    MissingReason,
    NoSuchProposal,
    NotPermitted,
    StaleReview,
    SuperviseError,
)
from supervise.models import AuditEvent, Decision, Proposal
from supervise.proposals import decisions
from tests.support.proposals import HOSTILE, ask, ask_gate, ask_image, seen

pytestmark = pytest.mark.django_db

VERBS: dict[str, Callable[..., Any]] = {
    "approve": lambda proposal, actor, digest: decisions.approve(
        proposal.pk, actor=actor, seen_digest=digest
    ),
    "modify": lambda proposal, actor, digest: decisions.modify(
        proposal.pk, actor=actor, seen_digest=digest, payload=proposal.payload
    ),
    "reject": lambda proposal, actor, digest: decisions.reject(
        proposal.pk, actor=actor, seen_digest=digest, note="No."
    ),
}
by_verb = pytest.mark.parametrize("decide", VERBS.values(), ids=VERBS)


def test_a_yes_makes_a_decision_a_table_version_and_an_audit_row(agent_a: Bottle, operator: User) -> None:
    proposal = ask(agent_a, path_allowlist=["/v1"])
    digest = seen(proposal)
    decision = decisions.approve(proposal.pk, actor=operator, seen_digest=digest, note=" Fine. ")
    assert isinstance(decision, Decision)
    assert (decision.status, decision.actor, decision.actor_name) == ("approved", operator, "olivia")
    assert (decision.notes, decision.seen_digest) == ("Fine.", digest)
    assert decision.final_payload == proposal.payload
    assert Proposal.objects.get(pk=proposal.pk).status == "approved"
    newest = versions.current(agent_a)
    assert (newest.version, newest.author, newest.parent.version) == (2, "olivia", 1)  # type: ignore[union-attr]
    assert newest.cause == f"proposal {proposal.pk}"
    assert decision.table_version == newest
    event = AuditEvent.objects.latest("seq")
    assert (event.action, event.actor_name, event.proposal_id) == ("approved", "olivia", proposal.pk)
    assert event.details["final_payload"] == proposal.payload
    assert event.details["table_version"] == 2


def test_a_yes_that_changes_nothing_makes_no_version(agent_a: Bottle, approve: Any) -> None:
    approve(ask(agent_a))
    decision = approve(ask(agent_a, path_allowlist=["/v1"]))
    assert versions.current(agent_a).version == 2
    assert decision.table_version.version == 2


@by_verb
@pytest.mark.parametrize("who", ["viewer", "inactive", "nobody"])
def test_deciding_needs_the_permission(agent_a: Bottle, request: Any, decide: Any, who: str) -> None:
    if who == "nobody":
        actor = User.objects.create_user("nobody")
    else:
        actor = request.getfixturevalue("viewer" if who == "viewer" else "operator")
        actor.is_active = who == "viewer"
    proposal = ask(agent_a)
    with pytest.raises(NotPermitted, match="decide_proposal"):
        decide(proposal, actor, seen(proposal))
    assert Proposal.objects.get(pk=proposal.pk).is_pending


@by_verb
@pytest.mark.parametrize("proposal_id", [uuid4(), "nonsense", "", "\x00"])
def test_an_unknown_proposal_is_no_proposal(operator: User, decide: Any, proposal_id: Any) -> None:
    with pytest.raises(NoSuchProposal):
        decide(Proposal(pk=proposal_id, payload={}), operator, "x")


@by_verb
@pytest.mark.parametrize("first", [*VERBS, "withdraw", "expire"])
def test_nothing_is_decided_twice(
    agent_a: Bottle, operator: User, second_operator: User, *, decide: Any, first: str
) -> None:
    proposal = ask(agent_a)
    digest = seen(proposal)
    if first == "withdraw":
        decisions.withdraw(proposal.pk, bottle=agent_a)
    elif first == "expire":
        decisions.expire(proposal.pk, reason="Too late.")
    else:
        VERBS[first](proposal, operator, digest)
    with pytest.raises(AlreadyDecided) as refused:
        decide(proposal, second_operator, digest)
    assert refused.value.decision == Decision.objects.get(proposal=proposal)
    assert refused.value.decision.actor_name in str(refused.value)


@by_verb
@pytest.mark.parametrize("digest", ["", "0" * 64])
def test_nothing_is_decided_unseen(agent_a: Bottle, operator: User, decide: Any, digest: str) -> None:
    proposal = ask(agent_a)
    with pytest.raises(StaleReview):
        decide(proposal, operator, digest)
    assert Proposal.objects.get(pk=proposal.pk).is_pending


@pytest.mark.parametrize(
    "other", [{"host": "api.example.com", "path_allowlist": ["/v1"]}, {"host": "*.example.com"}]
)
def test_a_change_of_the_hosts_reach_makes_a_review_stale(
    agent_a: Bottle, operator: User, approve: Any, other: dict[str, Any]
) -> None:
    proposal = ask(agent_a)
    digest = seen(proposal)
    approve(ask(agent_a, **other))
    with pytest.raises(StaleReview):
        decisions.approve(proposal.pk, actor=operator, seen_digest=digest)


def test_an_unrelated_change_leaves_a_review_valid(
    agent_a: Bottle, agent_b: Bottle, operator: User, approve: Any
) -> None:
    proposal = ask(agent_a)
    digest = seen(proposal)
    approve(ask(agent_a, "other.example.com"))
    approve(ask_image(agent_a))
    approve(ask(agent_b, "api.example.com"))
    decisions.approve(proposal.pk, actor=operator, seen_digest=digest)
    table = versions.current(agent_a).table
    assert [route.host for route in table.routes] == ["api.example.com", "other.example.com"]


def test_a_new_dockerfile_makes_the_review_of_another_stale(
    agent_a: Bottle, operator: User, approve: Any
) -> None:
    first, second = ask_image(agent_a), ask_image(agent_a, "FROM debian:13\n")
    digest = seen(second)
    approve(first)
    with pytest.raises(StaleReview):
        decisions.approve(second.pk, actor=operator, seen_digest=digest)


def test_a_gate_ask_opens_the_gate_and_no_route(agent_a: Bottle, approve: Any) -> None:
    decision = approve(ask_gate(agent_a, "https://Gate.Example.com/some/path"))
    table = versions.current(agent_a).table
    assert table.gate_hosts == ("gate.example.com",)
    assert not table.routes
    assert decision.granted == {"host": "gate.example.com"}


def test_an_image_ask_is_recorded_for_an_operator_to_carry_out(agent_a: Bottle, approve: Any) -> None:
    decision = approve(ask_image(agent_a, "FROM debian:12\nRUN true\n"))
    agent_a.refresh_from_db()
    assert agent_a.dockerfile == "FROM debian:12\nRUN true\n"
    assert decision.applied == Decision.Applied.RECORDED
    assert versions.current(agent_a).version == 1


def test_modify_grants_the_edited_payload(agent_a: Bottle, modify: Any) -> None:
    proposal = ask(agent_a, path_allowlist=["/v1", "/v2"], lease={"ttl_seconds": 3600})
    decision = modify(
        proposal, host="api.example.com", path_allowlist=["/v1"], methods=["get"], lease={"ttl_seconds": 60}
    )
    route = versions.current(agent_a).table.get("api.example.com")
    assert route is not None
    assert (route.path_allowlist, route.methods) == (("/v1",), ("GET",))
    assert decision.status == "modified"
    assert decision.final_payload["methods"] == ["GET"]
    assert decision.not_granted == {
        "path_allowlist": ["/v2"],
        "methods": "all",
        "lease": {"ttl_seconds": 3600},
    }
    proposal.refresh_from_db()
    assert proposal.payload["path_allowlist"] == ["/v1", "/v2"]


@pytest.mark.parametrize(
    "payload",
    [
        {"host": "evil.example.net"},
        {"host": "*.example.com"},
        {"host": "api.example.com", "sudo": True},
        {"host": "api.example.com", "path_allowlist": ["no-slash"]},
        {"path_allowlist": ["/v1"]},
        {},
    ],
)
def test_modify_refuses_another_host_and_bad_payloads(
    agent_a: Bottle, modify: Any, payload: dict[str, Any]
) -> None:
    with pytest.raises(BadAsk):
        modify(ask(agent_a), **payload)
    assert not Decision.objects.exists()


@pytest.mark.parametrize("payload", [None, [], "x", 7])
def test_modify_refuses_what_is_no_object(agent_a: Bottle, operator: User, payload: Any) -> None:
    proposal = ask(agent_a)
    with pytest.raises(BadAsk, match="object"):
        decisions.modify(proposal.pk, actor=operator, seen_digest=seen(proposal), payload=payload)
    assert Proposal.objects.get(pk=proposal.pk).is_pending


def test_modify_may_narrow_a_wildcard_to_one_of_its_hosts(agent_a: Bottle, modify: Any) -> None:
    decision = modify(ask(agent_a, "*.example.com"), host="api.example.com")
    assert versions.current(agent_a).table.get("*.example.com") is None
    assert decision.not_granted == {"host": "*.example.com"}


def test_only_an_operators_edit_changes_the_credential(agent_a: Bottle, approve: Any, modify: Any) -> None:
    approve(ask(agent_a, auth={"scheme": "Bearer", "token_ref": "FIRST"}))
    ignored = approve(ask(agent_a, auth={"scheme": "Bearer", "token_ref": "SECOND"}))
    assert ignored.not_granted == {"ignored": ["auth"]}
    assert versions.current(agent_a).table.get("api.example.com").auth.token_ref == "FIRST"  # type: ignore[union-attr]
    modify(
        ask(agent_a, path_allowlist=["/x"]),
        host="api.example.com",
        auth={"scheme": "Basic", "token_ref": "THIRD"},
    )
    assert versions.current(agent_a).table.get("api.example.com").auth.token_ref == "THIRD"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ({"failed_url": "https://evil.example.net/"}, "asked for gate.example.com"),
        ({"failed_url": "https://gate.example.com/", "host": "evil.example.net"}, "failed_url"),
        ({"failed_url": "https://gate.example.com/", "sudo": True}, "unknown key"),
        ({"host": "gate.example.com"}, "failed_url is required"),
    ],
)
def test_modify_refuses_another_gate_host(
    agent_a: Bottle, modify: Any, payload: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadAsk, match=message):
        modify(ask_gate(agent_a), **payload)


@pytest.mark.parametrize(
    "payload", [{"dockerfile": ""}, {"dockerfile": 7}, {"dockerfile": "RUN x"}, {"x": 1}]
)
def test_modify_refuses_what_is_no_dockerfile(agent_a: Bottle, modify: Any, payload: dict[str, Any]) -> None:
    with pytest.raises(BadAsk):
        modify(ask_image(agent_a), **payload)


def test_modify_refuses_a_dockerfile_that_could_never_be_built(agent_a: Bottle, modify: Any) -> None:
    Bottle.objects.update(manifest="image: x", backend="docker")
    with pytest.raises(BadAsk, match="line 2: a rebuild takes no VOLUME"):
        modify(ask_image(agent_a), dockerfile="FROM debian:12\nVOLUME /v\n")


def test_an_edited_dockerfile_is_stored_whatever_it_holds(agent_a: Bottle, modify: Any) -> None:
    decision = modify(ask_image(agent_a), dockerfile="FROM debian:12\nRUN echo \ud800\n")
    agent_a.refresh_from_db()
    assert agent_a.dockerfile == decision.final_payload["dockerfile"] == "FROM debian:12\nRUN echo \ufffd\n"


@pytest.mark.parametrize("note", ["", "  \n"])
def test_a_rejection_needs_a_reason(agent_a: Bottle, operator: User, note: str) -> None:
    proposal = ask(agent_a)
    with pytest.raises(MissingReason):
        decisions.reject(proposal.pk, actor=operator, seen_digest=seen(proposal), note=note)
    assert Proposal.objects.get(pk=proposal.pk).is_pending


def test_a_rejection_changes_no_route(agent_a: Bottle, operator: User) -> None:
    proposal = ask(agent_a)
    decision = decisions.reject(proposal.pk, actor=operator, seen_digest=seen(proposal), note=HOSTILE)
    assert decision.applied == Decision.Applied.NOTHING
    assert versions.current(agent_a).version == 1
    decision.refresh_from_db()
    assert "\x1b[31m" in decision.notes
    assert "\u2400" in decision.notes


def test_an_agent_takes_its_own_ask_back(agent_a: Bottle) -> None:
    proposal = ask(agent_a)
    decision = decisions.withdraw(proposal.pk, bottle=agent_a)
    assert (decision.status, decision.actor, decision.actor_name) == ("withdrawn", None, "bottle agent-a")


@pytest.mark.parametrize("decided", [False, True])
def test_another_bottles_proposal_does_not_exist_decided_or_not(
    agent_a: Bottle, agent_b: Bottle, approve: Any, decided: bool
) -> None:
    proposal = ask(agent_a)
    if decided:
        approve(proposal)
    with pytest.raises(NoSuchProposal):
        decisions.withdraw(proposal.pk, bottle=agent_b)


def test_an_expired_proposal_says_why(agent_a: Bottle) -> None:
    decision = decisions.expire(ask(agent_a).pk, reason="Too late.")
    assert (decision.status, decision.notes, decision.actor_name) == ("expired", "Too late.", "bot-bottle")


def test_every_refusal_has_a_code_of_its_own() -> None:
    kinds = SuperviseError.__subclasses__()
    assert len({kind.code for kind in kinds}) == len(kinds)
    assert "refused" not in {kind.code for kind in kinds}
