"""Deciding by the console's forms: what happens, what is said, and what is refused."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.http import HttpResponse
from django.test import Client
from django.utils import timezone

from botbottle.models import Bottle
from egress.tables import versions
from supervise.models import Proposal
from supervise.proposals import decisions
from tests.supervise.console.conftest import browser_of
from tests.support.proposals import ask, ask_gate, ask_image, seen

pytestmark = pytest.mark.django_db(transaction=True)


def form_of(client: Client, proposal: Proposal, verb: str) -> dict[str, Any]:
    """The fields of a form as the page shows them, so that tests send what a browser would send."""
    page = client.get(f"/proposals/{proposal.pk}/").text
    form = re.search(rf'action="/proposals/{proposal.pk}/{verb}"[^>]*>(.*?)</form>', page, re.DOTALL)
    assert form, f"no form to {verb}"
    return dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', form[1]))


def decide(client: Client, proposal: Proposal, verb: str, **fields: Any) -> HttpResponse:
    form = fields.pop("form", None) or form_of(client, proposal, verb)
    return client.post(f"/proposals/{proposal.pk}/{verb}", {**form, **fields})


def said(client: Client, answer: HttpResponse) -> str:
    page = client.get(answer.headers["Location"]).text
    return " ".join(re.findall(r'<li class="\w+">(.*?)</li>', page))


def status(proposal: Proposal) -> str:
    return Proposal.objects.get(pk=proposal.pk).status


def test_approving_makes_it_live_and_says_which_version(olivia: Client, agent_a: Bottle) -> None:
    proposal = ask(agent_a)
    answer = decide(olivia, proposal, "approve", note="for now")
    assert (answer.status_code, answer.headers["Location"]) == (302, "/")
    told = said(olivia, answer)
    assert re.fullmatch(r"Approved: api\.example\.com for agent-a → live v2 in \d+ ms\.", told)
    assert Proposal.objects.get(pk=proposal.pk).decision.notes == "for now"
    assert versions.current(agent_a).table.get("api.example.com")


def test_rejecting_needs_a_reason(olivia: Client, agent_a: Bottle) -> None:
    proposal = ask(agent_a)
    refused = decide(olivia, proposal, "reject", note="  \r\n")
    assert refused.status_code == 400
    assert "Say why" in refused.text
    assert status(proposal) == "pending"
    answer = decide(olivia, proposal, "reject", note="too wide\r\nask for less")
    assert said(olivia, answer) == "Rejected: api.example.com for agent-a. The agent reads your reason."
    assert Proposal.objects.get(pk=proposal.pk).decision.notes == "too wide\nask for less"


MODIFIED = {
    "paths_are": "some", "paths": "/only/this", "methods_are": "some", "methods": ["GET"], "scheme": "Bearer",
    "token_ref": "DOCS_TOKEN", "ttl": "1", "unit": "hours", "max_uses": "5",
}  # fmt: skip


def test_modifying_grants_what_the_form_says(olivia: Client, agent_a: Bottle) -> None:
    proposal = ask(agent_a)
    answer = decide(olivia, proposal, "modify", **MODIFIED)
    assert said(olivia, answer).startswith("Modified: api.example.com for agent-a → live v2 in ")
    route = versions.current(agent_a).table.get("api.example.com")
    assert route and route.auth and route.lease
    assert (route.path_allowlist, route.methods, route.auth.token_ref) == (
        ("/only/this",),
        ("GET",),
        "DOCS_TOKEN",
    )
    assert route.lease.max_uses == 5


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"paths": "no-slash"}, "path_allowlist[0]"),
        ({"paths": ""}, "at least one path"),
        ({"methods": ["FETCH ME"]}, "methods[0]"),
        ({"token_ref": "not a name"}, "auth.token_ref"),
        ({"ttl": "soon"}, "whole number"),
        ({"host": "other.example.com"}, "The agent asked for api.example.com"),
    ],
)
def test_a_bad_modification_comes_back_with_what_was_typed(
    olivia: Client, agent_a: Bottle, changes: dict[str, Any], words: str
) -> None:
    proposal = ask(agent_a)
    answer = decide(olivia, proposal, "modify", note="typed note", **{**MODIFIED, **changes})
    assert answer.status_code == 400
    assert words in answer.text
    assert "typed note" in answer.text
    assert f'value="{changes.get("token_ref", "DOCS_TOKEN")}"' in answer.text
    assert re.search(r'data-panel="modify" open', answer.text)
    assert status(proposal) == "pending"


def test_the_gate_takes_yes_or_no_only(olivia: Client, agent_a: Bottle) -> None:
    proposal = ask_gate(agent_a)
    answer = decide(olivia, proposal, "modify", form={"seen_digest": seen(proposal)}, **MODIFIED)
    assert answer.status_code == 400
    assert "Approve or reject" in answer.text
    assert status(proposal) == "pending"
    assert "live v2 in" in said(olivia, decide(olivia, proposal, "approve"))


def test_a_dockerfile_is_edited_as_text(olivia: Client, agent_a: Bottle) -> None:
    proposal = ask_image(agent_a, "FROM debian:12\nRUN curl x\n")
    refused = decide(olivia, proposal, "modify", dockerfile="NONSENSE\r\n")
    assert refused.status_code == 400
    answer = decide(olivia, proposal, "modify", dockerfile="FROM debian:12\r\nUSER 1000\r\n")
    assert "The Dockerfile is recorded" in said(olivia, answer)
    assert Bottle.objects.get(pk=agent_a.pk).dockerfile == "FROM debian:12\nUSER 1000\n"


def test_approved_but_not_live_says_why(
    olivia: Client, agent_a: Bottle, monkeypatch: pytest.MonkeyPatch
) -> None:
    proposal = ask(agent_a)

    def full(path: Path, text: str, **options: bool) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("egress.tables.publishing.write_atomically", full)
    words = said(olivia, decide(olivia, proposal, "approve"))
    assert words.startswith("Approved, not live: api.example.com for agent-a.")
    assert "No space left on device" in words


@pytest.mark.parametrize("verb", ["approve", "modify", "reject"])
def test_the_second_operator_gets_409_and_sees_who_decided(
    olivia: Client, otto: Client, agent_a: Bottle, verb: str
) -> None:
    proposal = ask(agent_a)
    form = form_of(otto, proposal, verb)
    decide(olivia, proposal, "reject", note="first")
    answer = decide(otto, proposal, verb, form=form, note="second", **MODIFIED)
    assert answer.status_code == 409
    assert "Already rejected by olivia." in answer.text
    assert "first" in answer.text
    assert Proposal.objects.get(pk=proposal.pk).decision.actor_name == "olivia"


@pytest.mark.parametrize("verb", ["approve", "modify", "reject"])
def test_a_change_after_looking_re_renders_with_the_difference(
    olivia: Client, otto: Client, agent_a: Bottle, verb: str
) -> None:
    proposal = ask(agent_a, path_allowlist=["/one"])
    form = form_of(olivia, proposal, verb)
    decide(otto, ask(agent_a, path_allowlist=["/two"]), "approve")
    answer = decide(olivia, proposal, verb, form=form, note="my note", **MODIFIED)
    assert answer.status_code == 409
    assert status(proposal) == "pending"
    difference = answer.text.split("since you looked:")[1].split("</table>")[0]
    assert "/two" in difference and "/one" not in difference
    assert "my note" in answer.text
    assert seen(proposal) in answer.text, "the page is ready for another look"


def since_looking(page: str) -> str:
    return page.split("What changed since you looked:")[1].partition("Below is what")[0]


def test_the_end_of_a_lease_is_told_as_what_changed(
    olivia: Client, otto: Client, agent_a: Bottle, monkeypatch: pytest.MonkeyPatch
) -> None:
    decide(otto, ask(agent_a, path_allowlist=["/one"], lease={"ttl_seconds": 60}), "approve")
    proposal = ask(agent_a, path_allowlist=["/two"])
    form = form_of(olivia, proposal, "approve")
    later = timezone.now() + timedelta(seconds=61)
    monkeypatch.setattr("django.utils.timezone.now", lambda: later)
    answer = decide(olivia, proposal, "approve", form=form)
    assert answer.status_code == 409
    assert "The lease of api.example.com ended." in since_looking(answer.text)
    again = decide(
        olivia, proposal, "reject", form={**form, "seen": form_of(olivia, proposal, "reject")["seen"]}
    )
    assert "The lease of" not in again.text, "it was over when the operator looked"


def test_a_risk_that_rose_is_told_as_what_changed(
    olivia: Client, otto: Client, agent_a: Bottle, agent_b: Bottle
) -> None:
    proposal = ask(agent_a, "api.exarnple-corp.com")
    form = form_of(olivia, proposal, "approve")
    decide(otto, ask(agent_b, "api.example-corp.com"), "approve")
    answer = decide(olivia, proposal, "approve", form=form)
    assert answer.status_code == 409
    assert "It is high risk now: look-alike: it could be taken for" in since_looking(answer.text)


FROM_THE_MANIFEST = "backend: docker\nimage: debian:12\n"


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ({"dockerfile": "FROM a:1\n"}, {"dockerfile": "FROM b:1\n"}, "has another Dockerfile now"),
        ({}, {"manifest": FROM_THE_MANIFEST}, "now it would be rebuilt"),
        ({"manifest": FROM_THE_MANIFEST}, {"manifest": ""}, "can no longer be rebuilt"),
    ],
    ids=["another Dockerfile", "rebuilt now", "rebuilt no more"],
)  # fmt: skip
def test_another_image_is_told_as_what_changed(
    olivia: Client, agent_a: Bottle, before: dict[str, str], after: dict[str, str], told: str
) -> None:
    bottle = Bottle.objects.filter(pk=agent_a.pk)
    bottle.update(**before)
    proposal = ask_image(agent_a, "FROM debian:13\n")
    form = form_of(olivia, proposal, "approve")
    bottle.update(**after)
    answer = decide(olivia, proposal, "approve", form=form)
    assert answer.status_code == 409
    assert told in since_looking(answer.text)


@pytest.mark.parametrize(
    "note",
    ["", "junk", "f" * 16, "f" * 16 + " ٣ 1.000000", "f" * 16 + " 9 9999999999.000000", "f" * 16 + " 1"],
)
def test_a_junk_note_of_what_was_seen_harms_nothing(olivia: Client, agent_a: Bottle, note: str) -> None:
    proposal = ask(agent_a)
    form = {**form_of(olivia, proposal, "approve"), "seen_digest": "0" * 64, "seen": note}
    assert decide(olivia, proposal, "approve", form=form).status_code == 409
    assert status(proposal) == "pending"


def test_a_form_without_a_digest_decides_nothing(olivia: Client, agent_a: Bottle) -> None:
    proposal = ask(agent_a)
    for form in ({"x": "y"}, {"seen_digest": ""}, {"seen_digest": "0" * 64, "seen": "٣"}):
        assert decide(olivia, proposal, "approve", form=form).status_code == 409
    assert status(proposal) == "pending"


@pytest.mark.parametrize("verb", ["approve", "modify", "reject"])
def test_a_viewer_gets_403(vera: Client, olivia: Client, agent_a: Bottle, verb: str) -> None:
    proposal = ask(agent_a)
    answer = decide(vera, proposal, verb, form=form_of(olivia, proposal, verb), note="x", **MODIFIED)
    assert answer.status_code == 403
    assert "decide_proposal" in answer.text
    assert status(proposal) == "pending"


def test_permission_withdrawn_between_look_and_click_counts(
    olivia: Client, operator: User, agent_a: Bottle
) -> None:
    proposal = ask(agent_a)
    form = form_of(olivia, proposal, "approve")
    operator.user_permissions.remove(Permission.objects.get(codename="decide_proposal"))
    assert decide(olivia, proposal, "approve", form=form).status_code == 403
    assert status(proposal) == "pending"


@pytest.mark.parametrize("verb", ["approve", "modify", "reject"])
def test_a_form_from_elsewhere_is_refused(operator: User, agent_a: Bottle, verb: str) -> None:
    proposal = ask(agent_a)
    client = browser_of(operator, enforce_csrf_checks=True)
    refused = decide(client, proposal, verb, form={"seen_digest": seen(proposal)}, note="x")
    assert refused.status_code == 403
    assert "Nothing was changed." in refused.text
    assert status(proposal) == "pending"
    token = form_of(client, proposal, verb)
    assert token["csrfmiddlewaretoken"]
    assert decide(client, proposal, verb, form=token, note="x", **MODIFIED).status_code == 302


def test_who_is_signed_out_comes_back_to_the_proposal(client: Client, agent_a: Bottle) -> None:
    proposal = ask(agent_a)
    answer = client.post(f"/proposals/{proposal.pk}/approve", {"seen_digest": seen(proposal)})
    assert answer.headers["Location"] == f"/admin/login/?next=/proposals/{proposal.pk}/"
    assert status(proposal) == "pending"


def test_an_unknown_proposal_is_404(olivia: Client) -> None:
    unknown = "/proposals/00000000-0000-0000-0000-000000000000/"
    assert olivia.get(unknown).status_code == 404
    assert olivia.post(unknown + "approve").status_code == 404


def test_a_quorum_counts_and_says_so(olivia: Client, otto: Client, agent_a: Bottle, settings: Any) -> None:
    settings.SUPERVISE_QUORUM = 2
    proposal = ask(agent_a, auth={"scheme": "Bearer", "token_ref": "TOKEN"})
    assert "0 of 2 approved" in olivia.get("/").text
    first = decide(olivia, proposal, "approve")
    assert "1 of 2" in said(olivia, first)
    assert status(proposal) == "pending"
    assert "1 of 2 approved (olivia)" in otto.get("/").text
    assert "live v2 in" in said(otto, decide(otto, proposal, "approve"))


def test_a_yes_to_what_it_was_before_no_longer_counts_on_the_card(
    olivia: Client, otto: Client, agent_a: Bottle, settings: Any
) -> None:
    settings.SUPERVISE_QUORUM = 2
    proposal = ask(agent_a, auth={"scheme": "Bearer", "token_ref": "TOKEN"})
    decide(olivia, proposal, "approve")
    settings.SUPERVISE_QUORUM = 1
    decide(otto, ask(agent_a, path_allowlist=["/two"]), "approve")
    settings.SUPERVISE_QUORUM = 2
    assert "0 of 2 approved" in otto.get("/").text


def test_the_decision_is_the_verbs_and_only_the_verbs(
    olivia: Client, agent_a: Bottle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The views change nothing themselves: with the verb taken away, nothing changes."""
    proposal = ask(agent_a)
    called: list[dict[str, Any]] = []

    def refuse(proposal_id: Any, **arguments: Any) -> None:
        called.append(arguments)
        raise decisions.NotPermitted("not today")

    monkeypatch.setattr("supervise.proposals.decisions.approve", refuse)
    assert decide(olivia, proposal, "approve", note="n").status_code == 403
    assert called[0]["note"] == "n" and called[0]["seen_digest"] == seen(proposal)
    assert status(proposal) == "pending"
