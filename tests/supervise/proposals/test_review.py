"""What operators are shown, and the digest that stands for it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from botbottle.models import Bottle
from egress.policy.describe import table_text
from egress.policy.table import RouteTable
from egress.tables import versions
from supervise.errors import StaleReview
from supervise.models import Rebuild
from supervise.proposals import decisions, queries
from supervise.proposals.review import review
from supervise.proposals.risk import Level
from tests.support.proposals import ask, ask_image, seen

pytestmark = pytest.mark.django_db
NARROW = {"path_allowlist": ["/x"], "methods": ["GET"], "lease": {"ttl_seconds": 60}}


def test_a_route_is_shown_before_and_after(agent_a: Bottle, approve: Any) -> None:
    approve(ask(agent_a, path_allowlist=["/v1"]))
    shown = queries.review_of(ask(agent_a, path_allowlist=["/v2"], methods=["GET"]))
    assert "  path: /v2" not in shown.before
    assert "  path: /v2" in shown.after
    assert shown.table_version == 2
    assert shown.effects == ("newly reachable: all methods on api.example.com under /v2",)
    assert any("more than asked" in warning for warning in shown.warnings)


def test_a_dockerfile_is_shown_before_and_after(agent_a: Bottle, approve: Any) -> None:
    approve(ask_image(agent_a, "FROM debian:12\n"))
    shown = queries.review_of(queries.get_proposal(ask_image(agent_a, "FROM debian:13\n").pk))
    assert (shown.before, shown.after) == ("FROM debian:12\n", "FROM debian:13\n")
    assert shown.risk.level is Level.HIGH


def test_an_edit_is_shown_with_the_same_digest(agent_a: Bottle) -> None:
    proposal = ask(agent_a)
    edited = {"host": "api.example.com", "auth": {"scheme": "Bearer", "token_ref": "TOKEN"}}
    asked, changed = queries.review_of(proposal), queries.review_of(proposal, edited=edited)
    assert asked.seen_digest == changed.seen_digest
    assert (asked.risk.level, changed.risk.level) == (Level.MEDIUM, Level.HIGH)
    assert "token_ref: TOKEN" in changed.after


def test_table_text_has_one_fact_a_line_and_no_route_without_its_limits() -> None:
    table = RouteTable.from_dict(
        {
            "routes": [
                {"host": "b.example.com"},
                {
                    "host": "a.example.com",
                    "path_allowlist": ["/y", "/x"],
                    "methods": ["GET"],
                    "auth": {"scheme": "Bearer", "token_ref": "TOKEN"},
                    "lease": {"max_uses": 3},
                    "pinned_addresses": ["10.0.0.2", "10.0.0.1"],
                },
            ],
            "gate_hosts": ["a.example.com"],
        }
    )
    assert table_text(table).split("\n") == [
        "route a.example.com",
        "  path: /x",
        "  path: /y",
        "  method: GET",
        "  auth.scheme: Bearer",
        "  auth.token_ref: TOKEN",
        "  lease.max_uses: 3",
        "  pinned_addresses: 10.0.0.1",
        "  pinned_addresses: 10.0.0.2",
        "route b.example.com",
        "  path: (all)",
        "  method: (all)",
        "gate a.example.com",
    ]


def test_the_end_of_a_lease_makes_a_review_stale(agent_a: Bottle, approve: Any) -> None:
    """After it, the agent's own credential would count where it was said to be ignored."""
    approve(ask(agent_a, lease={"ttl_seconds": 60}))
    proposal = ask(agent_a, auth={"scheme": "Bearer", "token_ref": "TOKEN"})
    version, now = versions.current(agent_a), timezone.now()
    before = review(proposal, version, now=now)
    after = review(proposal, version, now=now + timedelta(seconds=61))
    assert any("auth is ignored" in effect for effect in before.effects)
    assert any("carries TOKEN" in effect for effect in after.effects)
    assert before.seen_digest != after.seen_digest
    assert before.seen_digest == review(proposal, version, now=now + timedelta(seconds=30)).seen_digest


def test_that_a_bottle_can_be_rebuilt_by_now_makes_a_review_stale(agent_a: Bottle, operator: User) -> None:
    """Who agreed to keep a Dockerfile on record did not agree to replace the bottle."""
    proposal = ask_image(agent_a)
    digest = seen(proposal)
    Bottle.objects.filter(pk=agent_a.pk).update(manifest="agent: claude\n")
    with pytest.raises(StaleReview):
        decisions.approve(proposal.pk, actor=operator, seen_digest=digest)
    assert not Rebuild.objects.exists()


@pytest.mark.parametrize("mine", [True, False], ids=["of this bottle", "of another bottle"])
def test_a_risk_that_rose_makes_a_review_stale(
    agent_a: Bottle, agent_b: Bottle, operator: User, approve: Any, mine: bool
) -> None:
    proposal = ask(agent_a, "api.exarnple-corp.com", **NARROW)
    before = queries.review_of(proposal)
    approve(ask(agent_a, "elsewhere.example.com", **NARROW))
    assert seen(proposal) == before.seen_digest, "an unrelated route changes nothing"
    approve(ask(agent_a if mine else agent_b, "api.example-corp.com", **NARROW))
    after = queries.review_of(proposal)
    assert (before.risk.level, after.risk.level) == (Level.LOW, Level.HIGH)
    with pytest.raises(StaleReview):
        decisions.approve(proposal.pk, actor=operator, seen_digest=before.seen_digest)
    edited = {**proposal.payload, "methods": ["HEAD"]}
    assert queries.review_of(proposal, edited=edited).seen_digest == after.seen_digest


def test_joining_and_looking_again_leave_the_digest_alone(agent_a: Bottle) -> None:
    proposal = ask(agent_a)
    digest = seen(proposal)
    ask(agent_a, why="Another reason.")
    assert seen(proposal) == digest


def test_two_equal_asks_have_two_digests(agent_a: Bottle, agent_b: Bottle) -> None:
    assert seen(ask(agent_a)) != seen(ask(agent_b))


def test_live_routes_leave_out_what_is_over(
    agent_a: Bottle, approve: Any, django_capture_on_commit_callbacks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with django_capture_on_commit_callbacks(execute=True):
        approve(ask(agent_a, lease={"ttl_seconds": 60}))
    assert len(queries.live_routes(agent_a)["routes"]) == 1
    later = timezone.now() + timedelta(seconds=61)
    monkeypatch.setattr("django.utils.timezone.now", lambda: later)
    assert queries.live_routes(agent_a)["routes"] == []


def test_live_routes_are_what_was_published_not_what_was_approved(agent_a: Bottle, approve: Any) -> None:
    approve(ask(agent_a))  # inside the test's transaction: committed nowhere, published nowhere
    assert queries.live_routes(agent_a) == {
        "version": 1,
        "source": "last known",
        "routes": [],
        "gate_hosts": [],
    }
