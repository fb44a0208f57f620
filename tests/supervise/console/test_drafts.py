"""Refused requests that nobody asked for: shown as drafts, approved in an operator's name, and on record."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta
from html import unescape
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.http import HttpResponse
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from botbottle.models import Bottle
from egress.models import TrafficRecord
from egress.policy.routes import Lease, Route
from egress.policy.table import RouteTable
from egress.tables import versions
from supervise.models import Assignment, AuditEvent, Proposal
from supervise.proposals import decisions, drafts, precedents
from tests.support.proposals import ask, seen

pytestmark = pytest.mark.django_db(transaction=True)
HOST = "api.example.com"
ADDRESS = f"/draft/?bottle=agent-a&host={HOST}"


def refuse(bottle: Bottle, path: str = "/docs", method: str = "GET", host: str = HOST, **more: Any) -> None:
    arguments = {"host": host, "path_allowlist": [path], "methods": [method], "justification": "refused"}
    TrafficRecord.objects.create(**{
        "bottle": bottle, "at": timezone.now(), "method": method, "scheme": "https", "host": host,
        "path": path, "table_version": 1, "verdict": "refused", "reason": "no-route", "status": 403,
        "bytes_out": 0, "bytes_in": 0, "duration_ms": 1,
        "ask": {"tool": "egress-block", "arguments": arguments}, **more,
    })  # fmt: skip


def test_the_list_can_be_had_by_itself(olivia: Client, agent_a: Bottle) -> None:
    assert olivia.get("/queue/drafts").text.strip() == ""
    refuse(agent_a)
    part = olivia.get("/queue/drafts").text
    assert "Refused, not asked for yet" in part and HOST in part and "<html" not in part
    assert part.strip() in olivia.get("/").text, "as on the page"


def form_of(page: str) -> dict[str, str]:
    form = page.split('action="/draft/approve"', 1)[1].split("</form>", 1)[0]
    found = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', form)
    return {name: unescape(value) for name, value in found}


def approve(client: Client, **changes: str) -> HttpResponse:
    return client.post("/draft/approve", {**form_of(client.get(ADDRESS).text), **changes})


def test_refusals_of_one_host_are_one_draft(olivia: Client, agent_a: Bottle, agent_b: Bottle) -> None:
    refuse(agent_a)
    refuse(agent_a, "/docs/guide", "HEAD")
    refuse(agent_a, "/api", "POST")
    refuse(agent_b, "/other")
    found = {draft.bottle.slug: draft for draft in drafts.drafts()}
    assert found["agent-a"].payload == {
        "host": HOST, "path_allowlist": ["/api", "/docs"], "methods": ["GET", "HEAD", "POST"],
    }  # fmt: skip
    assert (found["agent-a"].times, found["agent-b"].times) == (3, 1)
    page = olivia.get("/").text
    assert "Refused, not asked for yet: <strong>2</strong>" in page and "refused 3 times" in page


@pytest.mark.parametrize(
    "more",
    [
        {"ask": None}, {"finding": {"kind": "token"}}, {"verdict": "allowed"}, {"ask": []},
        {"ask": {"tool": "junk"}},
        {"ask": {"tool": "egress-block", "arguments": {"host": "localhost"}}},
        {"ask": {"tool": "egress-block", "arguments": None}},
    ],
    ids=str,
)  # fmt: skip
def test_what_asking_cannot_help_is_no_draft(olivia: Client, agent_a: Bottle, more: dict[str, Any]) -> None:
    refuse(agent_a, **more)
    assert drafts.drafts() == []
    assert "not asked for yet" not in olivia.get("/").text


def test_what_was_asked_for_or_opened_meanwhile_is_gone(agent_a: Bottle, operator: User) -> None:
    refuse(agent_a)
    proposal = ask(agent_a, path_allowlist=["/docs"])
    assert drafts.drafts() == []
    decisions.reject(proposal.pk, actor=operator, seen_digest=seen(proposal), note="no")
    assert len(drafts.drafts()) == 1
    wide = ask(agent_a)
    decisions.approve(wide.pk, actor=operator, seen_digest=seen(wide))
    assert drafts.drafts() == []


def test_a_used_up_lease_is_a_draft_for_the_same_lease_until_it_is_granted_anew(agent_a: Bottle) -> None:
    lease = {"max_uses": 3, "ttl_seconds": 60}
    arguments = {"host": HOST, "lease": lease, "justification": "refused"}
    hour = timedelta(hours=1)
    grant(agent_a, timezone.now() - hour)
    refuse(agent_a, reason="used-up", ask={"tool": "egress-block", "arguments": arguments})
    assert [draft.payload for draft in drafts.drafts()] == [{"host": HOST, "lease": lease}]
    grant(agent_a, timezone.now() + hour)
    assert drafts.drafts() == []


def grant(bottle: Bottle, at: datetime) -> None:
    route = Route(HOST, lease=Lease(max_uses=3, granted_at=at))
    versions.append(versions.current(bottle), RouteTable((route,), (HOST,)), author="tests", cause="a lease")


def test_approving_one_files_it_in_the_operators_name_and_grants_it(olivia: Client, agent_a: Bottle) -> None:
    refuse(agent_a)
    page = olivia.get(ADDRESS).text
    assert "newly reachable: GET on api.example.com under /docs" in page
    assert "GET https://api.example.com/docs" in page
    told = olivia.get(approve(olivia, note="go on").headers["Location"]).text
    assert re.search(r"Approved: api\.example\.com for agent-a → live v2 in \d+ ms\.", told)
    proposal = Proposal.objects.get()
    assert (proposal.status, proposal.filed_by, proposal.decision.notes) == ("approved", "olivia", "go on")
    assert versions.current(agent_a).table.get(HOST)
    actions = AuditEvent.objects.filter(proposal_id=proposal.pk).order_by("seq")
    assert [(event.action, event.actor_name) for event in actions][:2] == [
        ("filed for the bottle", "olivia"),
        ("approved", "olivia"),
    ]
    assert "Filed by olivia" in proposal.justification


def test_a_change_after_looking_shows_it_again(olivia: Client, operator: User, agent_a: Bottle) -> None:
    refuse(agent_a)
    form = form_of(olivia.get(ADDRESS).text)
    other = ask(agent_a, path_allowlist=["/two"])
    decisions.approve(other.pk, actor=operator, seen_digest=seen(other))
    answer = olivia.post("/draft/approve", {**form, "note": "as typed"})
    assert answer.status_code == 409
    assert "Nothing was decided." in answer.text
    changed = answer.text.split("What changed since you looked:")[1].split("Below is what")[0]
    assert "path: /two" in changed and "path: /docs" not in changed
    assert "as typed</textarea>" in answer.text
    assert Proposal.objects.filter(filed_by="olivia").count() == 0


def test_the_digest_covers_the_ask_itself(olivia: Client, agent_a: Bottle) -> None:
    refuse(agent_a)
    answer = approve(olivia, payload=json.dumps({"host": HOST}))
    assert answer.status_code == 409
    assert not Proposal.objects.exists()


@pytest.mark.parametrize("payload", ["", "junk", "[]", '{"host": "localhost"}', '{"host": 1}', "[" * 9999])
def test_a_junk_ask_files_nothing(olivia: Client, agent_a: Bottle, payload: str) -> None:
    refuse(agent_a)
    assert approve(olivia, payload=payload).status_code == 302
    assert not Proposal.objects.exists()


def test_who_may_not_decide_sees_no_form_and_approves_nothing(
    vera: Client, olivia: Client, second_operator: User, agent_a: Bottle
) -> None:
    refuse(agent_a)
    form = form_of(olivia.get(ADDRESS).text)
    assert "draft/approve" not in vera.get(ADDRESS).text
    assert vera.post("/draft/approve", form).status_code == 403
    Assignment.objects.create(bottle=agent_a, operator=second_operator)
    assert olivia.post("/draft/approve", form).status_code == 403
    assert not Proposal.objects.exists()


def test_a_draft_of_high_risk_needs_the_quorum(olivia: Client, agent_a: Bottle, settings: Any) -> None:
    settings.SUPERVISE_QUORUM = 2
    refuse(agent_a, host="githud.com")
    page = olivia.get("/draft/?bottle=agent-a&host=githud.com").text
    answer = olivia.post("/draft/approve", form_of(page), follow=True)
    assert "1 of 2" in answer.text
    assert Proposal.objects.get().is_pending


def test_one_that_is_gone_leads_back(olivia: Client) -> None:
    assert "refused any more" in olivia.get("/draft/?bottle=x&host=y", follow=True).text
    assert olivia.get("/draft/").status_code == 302


def test_the_number_of_queries_does_not_grow_with_the_records(agent_a: Bottle, agent_b: Bottle) -> None:
    def queries() -> int:
        with CaptureQueriesContext(connection) as captured:
            drafts.drafts()
        return len(captured)

    refuse(agent_a)
    refuse(agent_b)
    few = queries()
    for number in range(60):
        refuse((agent_a, agent_b)[number % 2], host=f"h{number}.example.com")
    assert queries() == few
    assert len(drafts.drafts()) == 2 * drafts.MOST, "so many of each"


def test_no_bottle_pushes_out_what_another_was_refused(agent_a: Bottle, agent_b: Bottle) -> None:
    refuse(agent_b, host="quiet.example.com")
    for number in range(drafts.MOST + 1):
        refuse(agent_a, host=f"h{number}.example.com")
    refuse(agent_a, host="telemetry.example.com")
    retried = TrafficRecord.objects.get(host="telemetry.example.com")
    fields = {field.attname: getattr(retried, field.attname) for field in retried._meta.fields}
    TrafficRecord.objects.bulk_create(TrafficRecord(**{**fields, "id": None}) for _ in range(1000))
    found = drafts.drafts()
    assert [draft.host for draft in found if draft.bottle == agent_b] == ["quiet.example.com"]
    assert (found[0].host, found[0].times) == ("telemetry.example.com", 1001), "the newest first"
    TrafficRecord.objects.filter(host="telemetry.example.com").delete()
    hosts = [draft.host for draft in drafts.drafts()]
    newest = [f"h{number}.example.com" for number in range(drafts.MOST, 0, -1)]
    assert hosts == [*newest, "quiet.example.com"]


def test_refusals_are_found_without_reading_what_else_a_bottle_did(agent_a: Bottle) -> None:
    assert "refusals_to_ask_for" in precedents.refusals_of(agent_a).explain()
