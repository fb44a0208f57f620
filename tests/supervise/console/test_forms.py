"""The forms beside yes and no: preview, snooze, stop asking, several at once; and parts for the script."""

from __future__ import annotations

import re
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth.models import User
from django.http import HttpResponse
from django.test import Client
from django.utils import timezone

from botbottle.models import Bottle
from egress.models import TrafficRecord
from egress.tables import versions
from supervise.bottles import records as bottles
from supervise.kinds import mcp_tool
from supervise.models import Assignment, AuditEvent, Proposal, StandingRefusal
from supervise.proposals import decisions, standing_refusals
from tests.support.proposals import ask, ask_gate, ask_image, seen

pytestmark = pytest.mark.django_db(transaction=True)
NARROW = {"path_allowlist": ["/x"], "methods": ["GET"], "lease": {"ttl_seconds": 60}}
EDIT = {
    "host": "api.example.com", "paths_are": "some", "paths": "/only/this", "methods_are": "some",
    "methods": ["GET"], "scheme": "", "token_ref": "", "header": "", "ttl": "1", "unit": "hours",
    "max_uses": "",
}  # fmt: skip


def send(client: Client, proposal: Proposal, verb: str, *, part: bool = False, **fields: Any) -> HttpResponse:
    headers = {"X-Fragment": "1"} if part else {}
    form = {"seen_digest": seen(proposal), **fields}
    return client.post(f"/proposals/{proposal.pk}/{verb}", form, headers=headers)


def status(proposal: Proposal) -> str:
    return Proposal.objects.get(pk=proposal.pk).status


# --- Preview


def test_a_preview_shows_what_the_edit_would_do_and_changes_nothing(olivia: Client, agent_a: Bottle) -> None:
    proposal = ask(agent_a)
    part = send(olivia, proposal, "preview", part=True, **EDIT).text
    assert "newly reachable: GET on api.example.com under /only/this" in part
    assert "path: /only/this" in part and "<html" not in part
    page = send(olivia, proposal, "preview", note="typed", **EDIT).text
    assert "under /only/this" in page and "typed" in page and 'data-panel="modify" open' in page
    assert status(proposal) == "pending"
    assert versions.current(agent_a).version == 1


def test_a_preview_says_what_is_wrong_with_the_edit(olivia: Client, agent_a: Bottle) -> None:
    part = send(olivia, ask(agent_a), "preview", part=True, **{**EDIT, "paths": "no-slash"}).text
    assert "path_allowlist[0]" in part


def test_a_preview_tells_the_risk_of_the_edit(olivia: Client, agent_a: Bottle) -> None:
    edit = {**EDIT, "scheme": "Bearer", "token_ref": "GITHUB_TOKEN"}
    assert (
        "carries the credential GITHUB_TOKEN" in send(olivia, ask(agent_a), "preview", part=True, **edit).text
    )


def test_a_dockerfile_is_shown_by_instruction_with_flags(olivia: Client, agent_a: Bottle) -> None:
    Bottle.objects.filter(pk=agent_a.pk).update(dockerfile="FROM debian:12\nUSER agent\n")
    agent_a.refresh_from_db()
    proposal = ask_image(agent_a, "FROM debian:12\nRUN curl https://x.example | sh\nUSER agent\n")
    page = olivia.get(f"/proposals/{proposal.pk}/").text
    assert re.findall(r'class="instruction diff-(\w+)"', page) == ["same", "added", "same"]
    assert "runs a script straight from the network" in page


# --- Stale forms


def test_a_dockerfile_that_changed_meanwhile_is_shown_with_the_difference(
    olivia: Client, otto: Client, agent_a: Bottle
) -> None:
    proposal = ask_image(agent_a, "FROM debian:12\nRUN one\n")
    page = olivia.get(f"/proposals/{proposal.pk}/").text
    form = dict(re.findall(r'<input type="hidden" name="(seen\w*)" value="([^"]*)"', page))
    send(otto, ask_image(agent_a, "FROM debian:12\nRUN two\n"), "approve")
    answer = send(olivia, proposal, "approve", **form)
    assert answer.status_code == 409
    assert "RUN two" in answer.text.split("since you looked:")[1].split("</table>")[0]
    assert status(proposal) == "pending"


# --- Parts for the script


def test_the_script_gets_the_detail_alone_and_the_outcome_alone(olivia: Client, agent_a: Bottle) -> None:
    proposal = ask(agent_a)
    part = olivia.get(f"/proposals/{proposal.pk}/?open=reject", headers={"X-Fragment": "1"}).text
    assert "<html" not in part and 'data-panel="reject" open' in part
    refused = send(olivia, proposal, "reject", part=True, note="")
    assert (refused.status_code, "Say why" in refused.text, "<html" in refused.text) == (400, True, False)
    done = send(olivia, proposal, "approve", part=True)
    assert re.search(r'<li class="success"><bdi>Approved: .* → live v2 in \d+ ms\.</bdi>', done.text)
    assert "messagelist" not in olivia.get("/").text, "told once"


# --- Snooze


@pytest.mark.parametrize("length", ["15m", "1h", "tomorrow"])
def test_a_snoozed_card_leaves_the_queue_for_everybody_and_can_be_woken(
    olivia: Client, otto: Client, agent_a: Bottle, length: str
) -> None:
    proposal = ask(agent_a)
    answer = send(olivia, proposal, "snooze", **{"for": length, "utc_offset": "-480"})
    assert answer.status_code == 302
    queue = otto.get("/").text
    assert "api.example.com" not in queue and "snoozed (1)" in queue and "Nothing waits for you." in queue
    aside = otto.get("/?show=snoozed").text
    assert "api.example.com" in aside and "snoozed by <strong>olivia</strong>" in aside
    assert status(proposal) == "pending"
    send(otto, proposal, "wake")
    assert "api.example.com" in olivia.get("/").text


def test_a_snooze_that_is_over_is_back_in_the_queue(olivia: Client, agent_a: Bottle) -> None:
    proposal = ask(agent_a)
    send(olivia, proposal, "snooze", **{"for": "1h"})
    Proposal.objects.filter(pk=proposal.pk).update(snoozed_until=timezone.now())
    assert "api.example.com" in olivia.get("/").text


@pytest.mark.parametrize("fields", [{}, {"for": "ever"}], ids=["nothing", "junk"])
def test_a_snooze_needs_a_length(olivia: Client, agent_a: Bottle, fields: dict[str, str]) -> None:
    answer = send(olivia, ask(agent_a), "snooze", **fields)
    assert answer.status_code == 400
    assert "Choose how long" in answer.text


@pytest.mark.parametrize("offset", ["junk", "99999", "-99999", "٣", "--1", ""])
def test_a_junk_offset_counts_as_none(olivia: Client, agent_a: Bottle, offset: str) -> None:
    proposal = ask(agent_a)
    send(olivia, proposal, "snooze", **{"for": "tomorrow", "utc_offset": offset})
    until = Proposal.objects.get(pk=proposal.pk).snoozed_until
    assert until and until.hour == 8


@pytest.mark.parametrize("verb", ["snooze", "wake"])
def test_who_may_not_decide_puts_nothing_aside(
    vera: Client, olivia: Client, second_operator: User, agent_a: Bottle, verb: str
) -> None:
    proposal = ask(agent_a)
    assert send(vera, proposal, verb, **{"for": "1h"}).status_code == 403
    Assignment.objects.create(bottle=agent_a, operator=second_operator)
    assert send(olivia, proposal, verb, **{"for": "1h"}).status_code == 403
    assert Proposal.objects.get(pk=proposal.pk).snoozed_until is None


# --- Stop asking


def test_reject_and_stop_asking_stands_until_it_is_lifted(
    olivia: Client, vera: Client, agent_a: Bottle
) -> None:
    proposal = ask(agent_a)
    send(olivia, proposal, "reject", note="Use the mirror.", stop_asking="yes")
    assert ask(agent_a) == proposal
    page = olivia.get("/refusals/").text
    assert "Use the mirror." in page and "answered 1 time" in page
    lift = re.search(r'action="(/refusals/\d+/lift)"', page)
    assert lift
    assert "lift" not in vera.get("/refusals/").text
    vera.post(lift[1])
    assert standing_refusals.standing().exists()
    assert "is a card again" in olivia.post(lift[1], follow=True).text
    assert "already lifted" in olivia.post(lift[1], follow=True).text
    assert ask(agent_a) != proposal


# --- Several at once


def confirm(client: Client, verb: str, *proposals: Proposal) -> str:
    ids = "&".join(f"id={proposal.pk}" for proposal in proposals)
    return client.get(f"/bulk/?verb={verb}&{ids}").text


def fields_of(page: str) -> dict[str, Any]:
    found = re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)"', page)
    seen_fields = {name: value for name, value in found if name.startswith(("seen-", "note-"))}
    return {"id": [value for name, value in found if name == "id"], **seen_fields}


def test_several_are_rejected_with_one_reason_and_each_result_is_told(
    olivia: Client, operator: User, agent_a: Bottle
) -> None:
    asked = [ask(agent_a, "one.example.com"), ask_image(agent_a), ask_gate(agent_a)]
    page = confirm(olivia, "reject", *asked)
    assert "Reject 3 proposals" in page
    missing = olivia.post("/bulk/reject", {**fields_of(page), "note": " "})
    assert missing.status_code == 400 and "Say why" in missing.text
    decisions.reject(asked[2].pk, actor=operator, seen_digest=seen(asked[2]), note="first")
    report = olivia.post("/bulk/reject", {**fields_of(page), "note": "not now"}).text
    assert "2 of 3 decided." in report and "Already rejected by olivia." in report
    assert [status(proposal) for proposal in asked] == ["rejected"] * 3


def test_only_low_risk_is_approved_several_at_a_time(olivia: Client, agent_a: Bottle) -> None:
    low = [ask(agent_a, f"low{number}.example.com", **NARROW) for number in range(2)]
    risky = ask(agent_a, "risky.example.com")
    page = confirm(olivia, "approve", *low, risky)
    assert "1 left out:" in page and "Approve 2 proposals" in page
    assert "newly reachable: GET on low0.example.com under /x" in page
    fields = fields_of(page)
    assert str(risky.pk) not in fields["id"]
    forced = {**fields, "id": [*fields["id"], str(risky.pk)], f"seen-{risky.pk}": seen(risky)}
    report = olivia.post("/bulk/approve", forced).text
    assert "2 of 3 decided." in report
    assert report.count("→ live v") == 2
    assert "It is medium risk: decide it on its own page." in report
    assert status(risky) == "pending"


def test_what_changed_after_the_list_was_made_is_not_approved(
    olivia: Client, otto: Client, agent_a: Bottle
) -> None:
    proposal = ask(agent_a, "low.example.com", **NARROW)
    page = confirm(olivia, "approve", proposal)
    send(otto, ask(agent_a, "low.example.com", path_allowlist=["/other"], methods=["GET"]), "approve")
    report = olivia.post("/bulk/approve", fields_of(page)).text
    assert "0 of 1 decided." in report and "changed since you looked" in report
    assert "path: /other" in report.split("What changed since you looked:")[1], "with the difference"
    assert status(proposal) == "pending"


@pytest.mark.parametrize("verb", ["approve", "reject"])
def test_a_viewer_decides_nothing_in_bulk(vera: Client, olivia: Client, agent_a: Bottle, verb: str) -> None:
    proposal = ask(agent_a, "low.example.com", **NARROW)
    assert f"/bulk/{verb}" not in confirm(vera, verb, proposal)
    fields = fields_of(confirm(olivia, verb, proposal))
    report = vera.post(f"/bulk/{verb}", {**fields, "note": "x"}).text
    assert "0 of 1 decided." in report
    assert status(proposal) == "pending"


def test_junk_in_the_list_is_passed_over(olivia: Client) -> None:
    assert "None of the picked proposals" in olivia.get("/bulk/?verb=junk&id=junk&id=").text
    unknown = {"id": ["junk", "00000000-0000-0000-0000-000000000000"], "note": "x"}
    assert "0 of 0 decided." in olivia.post("/bulk/reject", unknown).text


# --- What an operator should know


def refused(
    bottle: Bottle, path: str, *, method: str = "GET", host: str = "api.example.com", **more: Any
) -> None:
    TrafficRecord.objects.create(
        bottle=bottle, at=timezone.now(), method=method, scheme="https", host=host, path=path,
        table_version=1, verdict="refused", status=403, bytes_out=0, bytes_in=0,
        duration_ms=1, **{"reason": "no-route", **more},
    )  # fmt: skip


def asks_for(host: str) -> dict[str, Any]:
    arguments = {"host": host, "path_allowlist": ["/x"], "methods": ["GET"], "justification": "refused"}
    return {"tool": "egress-block", "arguments": arguments}


def called(bottle: Bottle, tool: str) -> Proposal:
    """A call that waits for an operator; each with arguments of its own."""
    found = mcp_tool.ask(bottle, "notes", tool, {"name": str(uuid4())})
    return Proposal.objects.get(pk=found)


def test_the_page_lists_refused_requests_that_would_be_allowed(
    olivia: Client, agent_a: Bottle, agent_b: Bottle
) -> None:
    proposal = ask(agent_a, path_allowlist=["/docs"], methods=["GET"])
    can_help = {"ask": asks_for("api.example.com")}
    for _ in range(3):
        refused(agent_a, "/docs/guide", **can_help)
    refused(agent_a, "/elsewhere", **can_help)
    refused(agent_a, "/docs/other", method="POST", **can_help)
    refused(agent_a, "/docs/secret", finding={"kind": "token"}, **can_help)
    refused(agent_a, "/docs/inside", reason="forbidden-address")
    refused(agent_b, "/docs/not-mine", **can_help)
    page = olivia.get(f"/proposals/{proposal.pk}/").text
    listed = page.split("Refused lately, and allowed by this")[1].split("</section>")[0]
    assert "GET https://api.example.com/docs/guide" in listed and "no-route, 3 times" in listed
    assert listed.count("<li>") == 1


def test_the_page_tells_earlier_decisions_and_those_of_others(
    olivia: Client, operator: User, agent_a: Bottle, agent_b: Bottle
) -> None:
    for bottle, more, note in ((agent_a, {"methods": ["PUT"]}, "mine"), (agent_b, {}, "theirs")):
        earlier = ask(bottle, **more)
        decisions.reject(earlier.pk, actor=operator, seen_digest=seen(earlier), note=f"{note} of before")
    page = olivia.get(f"/proposals/{ask(agent_a).pk}/").text
    mine, theirs = page.split("The same ask of other bottles")
    assert "mine of before" in mine and "theirs of before" not in mine
    assert "theirs of before" in theirs and "agent-b" in theirs


def test_the_page_warns_of_a_look_alike_of_what_other_bottles_reach(
    olivia: Client, operator: User, agent_a: Bottle, agent_b: Bottle
) -> None:
    known = ask(agent_b, "api.acme-corp.com")
    decisions.approve(known.pk, actor=operator, seen_digest=seen(known))
    for number in range(60):  # a bottle whose table changes often must not hide what others reach
        newest = versions.current(agent_a)
        versions.append(newest, newest.table, author="tests", cause=f"change {number}")
    alike = ask(agent_a, "api.acme-corq.com", **NARROW)
    refused(agent_a, "/x", host="www.acme-corq.com", ask=asks_for("www.acme-corq.com"))
    for path in (
        "/",
        f"/queue/cards?id={alike.pk}",
        f"/proposals/{alike.pk}/",
        f"/bulk/?verb=approve&id={alike.pk}",
        f"/bulk/?verb=reject&id={alike.pk}",
        "/draft/?bottle=agent-a&host=www.acme-corq.com",
    ):
        page = olivia.get(path).text
        assert "look-alike: it could be taken for acme-corp.com" in page, path
        assert "</span> high risk" in page and "</span> low risk" not in page, path
    forced = {"id": [str(alike.pk)], f"seen-{alike.pk}": seen(alike)}
    assert "It is high risk" in olivia.post("/bulk/approve", forced).text
    assert status(alike) == "pending"


def test_a_host_of_a_deleted_bottle_is_not_taken_for_known(
    operator: User, agent_a: Bottle, agent_b: Bottle
) -> None:
    known = ask(agent_b, "api.acme-corp.com")
    decisions.approve(known.pk, actor=operator, seen_digest=seen(known))
    assert versions.hosts_reached() == {"api.acme-corp.com"}
    bottles.delete("agent-b", author="tests")
    assert versions.hosts_reached() == frozenset()


def test_a_tools_call_is_told_as_one(olivia: Client, operator: User, agent_a: Bottle) -> None:
    made = [called(agent_a, tool) for tool in ("delete", "delete", "publish")]
    told = [send(olivia, proposal, "approve", part=True).text for proposal in made[1:]]
    assert all("The agent may make this call once, within an hour." in text for text in told)
    assert not any("Dockerfile" in text for text in told)
    assert mcp_tool.claim(made[1].pk)
    for path in (f"/proposals/{made[1].pk}/", "/history/"):
        assert ">called</span>" in olivia.get(path).text, path
    for path in (f"/proposals/{made[2].pk}/", "/history/"):
        page = olivia.get(path).text
        assert "good for one call within an hour" in page and "rebuilt" not in page, path


def test_the_page_of_a_tools_call_tells_answers_about_this_tool_alone(
    olivia: Client, operator: User, agent_a: Bottle
) -> None:
    for tool in ("delete", "publish"):
        earlier = called(agent_a, tool)
        note = f"{tool} of before"
        decisions.reject(earlier.pk, actor=operator, seen_digest=seen(earlier), note=note)
    page = olivia.get(f"/proposals/{called(agent_a, 'delete').pk}/").text
    assert "delete of before" in page and "publish of before" not in page


def test_a_bottle_of_other_operators_has_no_forms(
    olivia: Client, second_operator: User, agent_a: Bottle
) -> None:
    proposal = ask(agent_a)
    Assignment.objects.create(bottle=agent_a, operator=second_operator)
    assert "open=approve" not in olivia.get("/").text
    assert "have operators of their own" in olivia.get(f"/proposals/{proposal.pk}/").text


def test_every_choice_leaves_its_audit_row(olivia: Client, agent_a: Bottle) -> None:
    proposal = ask(agent_a)
    send(olivia, proposal, "snooze", **{"for": "1h"})
    send(olivia, proposal, "wake")
    send(olivia, proposal, "reject", note="no", stop_asking="yes")
    olivia.post(f"/refusals/{StandingRefusal.objects.get().pk}/lift")
    recorded = AuditEvent.objects.filter(actor_name="olivia").order_by("seq")
    assert [event.action for event in recorded] == [
        "snoozed", "woken", "rejected", "stop asking", "refusal lifted",
    ]  # fmt: skip
