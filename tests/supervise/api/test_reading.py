"""Looking at the queue, a proposal, bottles and history through the API."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from django.contrib.auth.models import User

from botbottle.models import Bottle
from supervise.proposals import decisions
from tests.support.proposals import HOSTILE, ask, ask_gate, ask_image, seen

pytestmark = pytest.mark.django_db


def test_it_lists_proposals_newest_first(api: Any, agent_a: Bottle) -> None:
    older, newer = ask(agent_a, "one.example.com"), ask(agent_a, "two.example.com", why="x" * 600)
    page = api.get("proposals/").json()
    assert set(page) == {"next", "previous", "results"}, "nothing that would have to be counted"
    assert [line["id"] for line in page["results"]] == [str(newer.pk), str(older.pk)]
    assert page["results"][0]["host"] == "two.example.com"
    assert page["results"][0]["justification_start"] == "x" * 500


def test_a_list_names_the_host_only_where_there_is_one(api: Any, agent_a: Bottle) -> None:
    ask_image(agent_a)
    ask_gate(agent_a, "https://gate.example.com/secret/path")
    hosts = {line["tool"]: line["host"] for line in api.get("proposals/").json()["results"]}
    assert hosts == {"capability-block": None, "pipelock-block": "gate.example.com"}


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ({"status": "pending"}, 2),
        ({"status": "rejected"}, 1),
        ({"bottle": "agent-a"}, 2),
        ({"bottle": "agent-a", "status": "pending"}, 1),
        ({"tool": "pipelock-block"}, 1),
        ({"status": ""}, 3),
    ],
)
def test_it_filters_the_list(
    api: Any, agent_a: Bottle, agent_b: Bottle, operator: User, *, query: dict[str, str], count: int
) -> None:
    refused = ask(agent_a)
    decisions.reject(refused.pk, actor=operator, seen_digest=seen(refused), note="No.")
    ask(agent_a, "other.example.com")
    ask_gate(agent_b)
    assert len(api.get("proposals/", **query).json()["results"]) == count


@pytest.mark.parametrize("path", ["proposals/", "history/"])
@pytest.mark.parametrize("name", ["status", "tool"])
def test_it_refuses_a_filter_it_does_not_know(api: Any, path: str, name: str) -> None:
    answer = api.get(path, **{name: "open"})
    assert answer.status_code == 400
    assert answer.json()["error"] == "bad_ask"
    assert name in answer.json()["message"]


def test_it_pages_the_list(api: Any, agent_a: Bottle) -> None:
    for number in range(3):
        ask(agent_a, f"n{number}.example.com")
    first = api.get("proposals/", page_size="2").json()
    assert [line["host"] for line in first["results"]] == ["n2.example.com", "n1.example.com"]
    query = dict(parse_qsl(urlsplit(first["next"]).query))
    ask(agent_a, "later.example.com")
    last = api.get("proposals/", **query).json()
    assert [line["host"] for line in last["results"]] == ["n0.example.com"], "no row moves to another page"
    assert last["next"] is None and last["previous"]
    assert api.get("proposals/", cursor="junk").status_code == 404


def test_it_shows_a_pending_proposal_with_its_review(api: Any, agent_a: Bottle) -> None:
    proposal = ask(agent_a, path_allowlist=["/v1"], methods=["GET"])
    body = api.get(f"proposals/{proposal.pk}/").json()
    assert body["payload"] == {"host": "api.example.com", "path_allowlist": ["/v1"], "methods": ["GET"]}
    assert body["decision"] is None
    review = body["review"]
    assert review["seen_digest"] == seen(proposal)
    assert review["before"] == ""
    assert "route api.example.com" in review["after"]
    assert review["effects"][0].startswith("newly reachable: GET on api.example.com under /v1")
    assert review["risk"]["level"] == "low"
    assert review["risk"]["reasons"]


def test_it_shows_a_decided_proposal_with_its_decision(api: Any, agent_a: Bottle, operator: User) -> None:
    proposal = ask(agent_a)
    decisions.reject(proposal.pk, actor=operator, seen_digest=seen(proposal), note="Use the mirror.")
    body = api.get(f"proposals/{proposal.pk}/").json()
    assert body["review"] is None
    assert body["decision"]["decided_by"] == "olivia"
    assert body["decision"]["notes"] == "Use the mirror."
    assert body["agent_is_told"].startswith("Rejected: nothing changed.")


@pytest.mark.parametrize("proposal_id", ["nonsense", "00000000-0000-4000-8000-000000000000", "%00"])
def test_an_unknown_proposal_is_404(api: Any, proposal_id: str) -> None:
    answer = api.get(f"proposals/{proposal_id}/")
    assert answer.status_code == 404
    assert answer.json()["error"] == "no_such_proposal"


def test_it_lists_bottles_with_their_open_proposals(api: Any, agent_a: Bottle, agent_b: Bottle) -> None:
    ask(agent_a)
    ask(agent_a, "other.example.com")
    lines = api.get("bottles/").json()["results"]
    assert [(line["slug"], line["pending"], line["live_version"]) for line in lines] == [
        ("agent-a", 2, 1),
        ("agent-b", 0, 1),
    ]


def test_it_shows_a_bottles_live_routes_without_the_secrets_name(
    api: Any, agent_a: Bottle, operator: User, django_capture_on_commit_callbacks: Any
) -> None:
    proposal = ask(agent_a, auth={"scheme": "Bearer", "token_ref": "PAYROLL_TOKEN"})
    with django_capture_on_commit_callbacks(execute=True):
        decisions.approve(proposal.pk, actor=operator, seen_digest=seen(proposal))
    answer = api.get("bottles/agent-a/routes/")
    assert answer.json()["version"] == 2
    assert answer.json()["routes"][0]["auth_injected"] is True
    assert b"PAYROLL_TOKEN" not in answer.content


def test_an_unknown_bottle_is_404(api: Any) -> None:
    assert api.get("bottles/nobody/routes/").status_code == 404


def test_history_tells_who_decided_what(api: Any, agent_a: Bottle, agent_b: Bottle, operator: User) -> None:
    for bottle in (agent_a, agent_b):
        proposal = ask(bottle)
        decisions.reject(proposal.pk, actor=operator, seen_digest=seen(proposal), note="No.")
    lines = api.get("history/", bottle="agent-b").json()["results"]
    assert [(line["bottle"], line["status"], line["decided_by"]) for line in lines] == [
        ("agent-b", "rejected", "olivia")
    ]


@pytest.mark.parametrize("path", ["proposals/", "proposals/{id}/", "history/"])
def test_hostile_text_is_inert_in_every_answer(api: Any, agent_a: Bottle, operator: User, path: str) -> None:
    proposal = ask(agent_a, why=HOSTILE)
    other = ask(agent_a, "other.example.com", why=HOSTILE)
    decisions.reject(other.pk, actor=operator, seen_digest=seen(other), note=HOSTILE)
    answer = api.get(path.format(id=proposal.pk))
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert all(0x20 <= byte < 0x7F for byte in answer.content)
    assert not set(b"<>&") & set(answer.content)
    assert "<script>alert(1)</script>" in json.dumps(json.loads(answer.content))
    assert "\u202egnp.exe \x1b[31m" in str(_texts(json.loads(answer.content)))


def _texts(value: Any) -> str:
    if isinstance(value, dict):
        return "".join(_texts(inner) for inner in value.values())
    if isinstance(value, list):
        return "".join(_texts(inner) for inner in value)
    return value if isinstance(value, str) else ""
