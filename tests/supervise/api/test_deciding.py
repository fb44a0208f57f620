"""Deciding through the API: never unseen, never twice, and refusals that say what to do next."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User

from botbottle.models import Bottle
from supervise.models import Decision, Proposal
from supervise.proposals import decisions
from tests.support.proposals import ask, ask_image, seen

pytestmark = pytest.mark.django_db


def test_it_approves_what_was_seen(
    api: Any, agent_a: Bottle, django_capture_on_commit_callbacks: Any
) -> None:
    proposal = ask(agent_a)
    with django_capture_on_commit_callbacks(execute=True):
        answer = api.post(f"proposals/{proposal.pk}/approve/", seen_digest=seen(proposal), note="Fine.")
    assert answer.status_code == 200
    assert answer.json()["status"] == "approved"
    decision = Decision.objects.get(proposal=proposal)
    assert (decision.actor_name, decision.notes, decision.applied) == ("olivia", "Fine.", "live")


def test_it_modifies(api: Any, agent_a: Bottle) -> None:
    proposal = ask(agent_a)
    answer = api.post(
        f"proposals/{proposal.pk}/modify/",
        seen_digest=seen(proposal),
        payload={"host": "api.example.com", "path_allowlist": ["/v1"]},
    )
    assert answer.status_code == 200
    body = answer.json()
    assert (body["status"], body["decision"]["not_granted"]) == ("modified", {"path_allowlist": "all"})


def test_it_rejects(api: Any, agent_a: Bottle) -> None:
    proposal = ask(agent_a)
    answer = api.post(f"proposals/{proposal.pk}/reject/", seen_digest=seen(proposal), note="No.")
    assert (answer.status_code, answer.json()["status"]) == (200, "rejected")


@pytest.mark.parametrize("verb", ["approve", "modify", "reject"])
@pytest.mark.parametrize("digest", [None, "", 7, "x" * 65])
def test_it_decides_nothing_unseen(api: Any, agent_a: Bottle, verb: str, digest: Any) -> None:
    proposal = ask(agent_a)
    body = {"payload": {"host": "api.example.com"}, "note": "Well."} | (
        {"seen_digest": digest} if digest is not None else {}
    )
    answer = api.post(f"proposals/{proposal.pk}/{verb}/", **body)
    assert answer.status_code in {400, 409}
    proposal.refresh_from_db()
    assert proposal.is_pending


def test_a_missing_digest_says_where_to_get_it(api: Any, agent_a: Bottle) -> None:
    answer = api.post(f"proposals/{ask(agent_a).pk}/approve/")
    assert answer.json() == {
        "error": "bad_ask",
        "message": "seen_digest: required: GET the proposal and send back its review.seen_digest",
    }


@pytest.mark.parametrize("verb", ["approve", "modify", "reject"])
def test_the_second_decision_is_409_and_says_who_was_first(
    api: Any, agent_a: Bottle, second_operator: User, verb: str
) -> None:
    proposal = ask(agent_a)
    digest = seen(proposal)
    first = decisions.reject(proposal.pk, actor=second_operator, seen_digest=digest, note="No.")
    answer = api.post(
        f"proposals/{proposal.pk}/{verb}/", seen_digest=digest, note="Yes?", payload=proposal.payload
    )
    assert answer.status_code == 409
    assert answer.json() == {
        "error": "already_decided",
        "message": "Already rejected by otto.",
        "status": "rejected",
        "decided_by": "otto",
        "decided_at": first.created_at.isoformat(),
    }


def test_a_stale_review_is_409_with_the_fresh_one(api: Any, agent_a: Bottle, operator: User) -> None:
    narrow, wide = ask(agent_a, path_allowlist=["/v1"]), ask(agent_a)
    digest = seen(wide)
    decisions.approve(narrow.pk, actor=operator, seen_digest=seen(narrow))
    answer = api.post(f"proposals/{wide.pk}/approve/", seen_digest=digest)
    assert answer.status_code == 409
    body = answer.json()
    assert body["error"] == "stale_review"
    assert any("widening" in warning for warning in body["proposal"]["review"]["warnings"])
    again = api.post(f"proposals/{wide.pk}/approve/", seen_digest=body["proposal"]["review"]["seen_digest"])
    assert again.status_code == 200


@pytest.mark.parametrize(
    ("verb", "body", "error"),
    [
        ("reject", {"note": "  "}, "missing_reason"),
        ("reject", {}, "missing_reason"),
        ("modify", {}, "bad_ask"),
        ("modify", {"payload": "all"}, "bad_ask"),
        ("modify", {"payload": {"host": "evil.example.net"}}, "bad_ask"),
        ("modify", {"payload": {"host": "api.example.com", "sudo": True}}, "bad_ask"),
        ("approve", {"note": "x" * 10_001}, "bad_ask"),
        ("approve", {"note": "nul \x00"}, "bad_ask"),
    ],
)
def test_a_bad_body_is_400_and_changes_nothing(
    api: Any, agent_a: Bottle, verb: str, body: dict[str, Any], error: str
) -> None:
    proposal = ask(agent_a)
    answer = api.post(f"proposals/{proposal.pk}/{verb}/", seen_digest=seen(proposal), **body)
    assert (answer.status_code, answer.json()["error"]) == (400, error)
    assert answer.json()["message"]
    assert not Decision.objects.exists()


@pytest.mark.parametrize("body", [b"{", b"[]", b'"x"', b"\xff", b'{"seen_digest": NaN}'])
def test_a_body_that_is_no_object_is_400(api: Any, agent_a: Bottle, body: bytes) -> None:
    answer = api.client.post(
        f"/api/proposals/{ask(agent_a).pk}/approve/",
        body,
        content_type="application/json",
        headers={"Authorization": f"Bearer {api.key}"},
    )
    assert answer.status_code == 400
    assert set(answer.json()) == {"error", "message"}


@pytest.mark.parametrize("verb", ["approve", "modify", "reject"])
def test_an_unknown_proposal_is_404(api: Any, verb: str) -> None:
    body = {"seen_digest": "0" * 64, "note": "x", "payload": {"host": "a.example.com"}}
    answer = api.post(f"proposals/none/{verb}/", **body)
    assert (answer.status_code, answer.json()["error"]) == (404, "no_such_proposal")


@pytest.mark.parametrize("verb", ["approve", "modify", "reject"])
def test_a_viewer_may_look_but_not_decide(calling: Any, viewer: User, agent_a: Bottle, verb: str) -> None:
    proposal, vera = ask(agent_a), calling(viewer)
    assert vera.get(f"proposals/{proposal.pk}/").status_code == 200
    answer = vera.post(
        f"proposals/{proposal.pk}/{verb}/", seen_digest=seen(proposal), note="x", payload=proposal.payload
    )
    assert (answer.status_code, answer.json()["error"]) == (403, "not_permitted")
    assert Proposal.objects.get(pk=proposal.pk).is_pending


@pytest.mark.parametrize("verb", ["approve", "modify", "reject"])
def test_deciding_needs_a_post(api: Any, agent_a: Bottle, verb: str) -> None:
    assert api.get(f"proposals/{ask(agent_a).pk}/{verb}/").status_code == 405


def test_the_first_of_two_needed_approvals_is_202(
    api: Any, calling: Any, agent_a: Bottle, second_operator: User, settings: Any
) -> None:
    settings.SUPERVISE_QUORUM = 2
    proposal = ask_image(agent_a)
    path, digest = f"proposals/{proposal.pk}/approve/", seen(proposal)
    first = api.post(path, seen_digest=digest)
    assert first.status_code == 202
    assert (first.json()["status"], first.json()["approvals"]) == ("pending", ["olivia"])
    second = calling(second_operator).post(path, seen_digest=digest)
    assert (second.status_code, second.json()["status"]) == (200, "approved")
