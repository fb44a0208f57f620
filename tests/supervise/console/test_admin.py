"""The admin shows records and changes none of them, but for rejecting by the verb and deleting API keys."""

from __future__ import annotations

import re

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from django.utils.html import escape

from botbottle.models import Bottle
from egress.models import ProxyEvent, Secret, TrafficRecord
from supervise.access import api_keys
from supervise.models import (
    ApiKey,
    Assignment,
    AuditEvent,
    Decision,
    Delivery,
    LoginFailure,
    ManagedServer,
    Proposal,
    Webhook,
)
from supervise.proposals import decisions
from tests.supervise.console.conftest import browser_of
from tests.support.proposals import ask, ask_image, seen

OURS = [
    model for model in admin.site._registry if model._meta.app_label in {"botbottle", "egress", "supervise"}
]
WITH_TESTS_OF_THEIR_OWN = {Secret, Assignment, Delivery, LoginFailure, Webhook}
READ_ONLY = [model for model in OURS if model not in WITH_TESTS_OF_THEIR_OWN]
CHANGELIST = "/admin/supervise/proposal/"


def test_every_record_is_there_to_look_at() -> None:
    names = {model._meta.model_name for model in OURS}
    assert {
        "bottle",
        "proposal",
        "decision",
        "routetableversion",
        "publication",
        "auditevent",
        "apikey",
        "trafficrecord",
        "proxyevent",
        "secret",
    } <= names


@pytest.mark.parametrize("model", OURS, ids=lambda model: model._meta.model_name)
def test_an_empty_list_says_what_would_be_there(root: Client, model: type[Proposal]) -> None:
    said = escape(admin.site._registry[model].when_empty)
    page = root.get(f"/admin/{model._meta.app_label}/{model._meta.model_name}/").text
    assert said
    assert f'<p class="empty">{said}</p>' in page


def test_a_search_that_finds_nothing_does_not_say_that_there_is_nothing(root: Client) -> None:
    assert '<p class="empty">' not in root.get(CHANGELIST, {"q": "none"}).text
    assert '<p class="empty">' not in root.get(CHANGELIST, {"status__exact": "pending"}).text


@pytest.mark.parametrize("model", READ_ONLY, ids=lambda model: model._meta.model_name)
def test_nothing_is_added_or_changed_there(
    root: Client, agent_a: Bottle, operator: User, model: type[Proposal]
) -> None:
    proposal = ask(agent_a)
    decisions.reject(proposal.pk, actor=operator, seen_digest=seen(proposal), note="no")
    api_keys.create(operator, "script")
    TrafficRecord.objects.create(
        bottle=agent_a, at=timezone.now(), table_version=1, status=403, bytes_out=0, bytes_in=0, duration_ms=1
    )
    ProxyEvent.objects.create(kind="back", text="the egress proxy answers again")
    ManagedServer.objects.create(bottle=agent_a, name="notes")
    row = model._default_manager.first()
    assert row is not None
    name = f"admin:{model._meta.app_label}_{model._meta.model_name}"
    assert root.get(reverse(f"{name}_changelist")).status_code == 200
    assert root.get(reverse(f"{name}_change", args=[row.pk])).status_code == 200
    assert root.post(reverse(f"{name}_change", args=[row.pk]), {"status": "approved"}).status_code == 403
    assert root.get(reverse(f"{name}_add")).status_code == 403
    deleting = root.post(reverse(f"{name}_delete", args=[row.pk]), {"post": "yes"}).status_code
    assert deleting == (302 if model is ApiKey else 403)


def test_no_digest_of_a_secret_is_shown(root: Client, agent_a: Bottle, operator: User) -> None:
    api_keys.create(operator, "script")
    key = ApiKey.objects.get()
    pages = [
        root.get(f"/admin/supervise/apikey/{key.pk}/change/").text,
        root.get("/admin/supervise/apikey/").text,
        root.get(f"/admin/botbottle/bottle/{agent_a.pk}/change/").text,
        root.get("/admin/botbottle/bottle/").text,
    ]
    for page in pages:
        assert key.digest not in page
        assert agent_a.token_digest not in page


def test_deleting_a_key_is_recorded(root: Client, operator: User) -> None:
    for name in ("one", "two", "three"):
        api_keys.create(operator, name)
    first, *others = ApiKey.objects.order_by("pk")
    root.post(f"/admin/supervise/apikey/{first.pk}/delete/", {"post": "yes"})
    chosen = {"action": "delete_selected", "_selected_action": [key.pk for key in others], "post": "yes"}
    root.post("/admin/supervise/apikey/", chosen)
    assert not ApiKey.objects.exists()
    deleted = AuditEvent.objects.filter(action="api key deleted")
    assert sorted(event.details["name"] for event in deleted) == ["one", "three", "two"]
    assert {event.actor_name for event in deleted} == {"root"}


def rejecting(client: Client, *proposals: Proposal, **more: str) -> str:
    chosen = {"action": "reject_selected", "_selected_action": [str(proposal.pk) for proposal in proposals]}
    return client.post(CHANGELIST, {**chosen, **more}, follow=True).text


def digests(page: str) -> dict[str, str]:
    return dict(re.findall(r'name="(seen-[^"]+)" value="([^"]+)"', page))


def test_rejecting_several_asks_for_a_reason_first_and_reports_each(
    olivia: Client, operator: User, agent_a: Bottle
) -> None:
    one, two, gone = ask(agent_a, "one.example.com"), ask_image(agent_a), ask(agent_a, "gone.example.com")
    page = rejecting(olivia, one, two, gone)
    assert "one.example.com" in page and "Dockerfile of 1 line" in page
    assert not Decision.objects.exists()
    without_reason = rejecting(olivia, one, two, gone, confirmed="yes", note="  ", **digests(page))
    assert "Say why" in without_reason
    assert not Decision.objects.exists()
    decisions.withdraw(gone.pk, bottle=agent_a)
    done = rejecting(olivia, one, two, gone, confirmed="yes", note="all too much", **digests(page))
    assert done.count("Rejected: ") == 2
    assert "Already withdrawn by bottle agent-a." in done
    assert {(d.actor_name, d.notes) for d in Decision.objects.filter(status="rejected")} == {
        ("olivia", "all too much")
    }


def test_rejecting_what_changed_since_it_was_listed_is_refused(olivia: Client, agent_a: Bottle) -> None:
    proposal = ask(agent_a)
    stale = dict.fromkeys(digests(rejecting(olivia, proposal)), "0" * 64)
    assert "changed since you looked" in rejecting(olivia, proposal, confirmed="yes", note="no", **stale)
    assert Proposal.objects.get().is_pending


def test_what_is_already_decided_is_left_alone(olivia: Client, operator: User, agent_a: Bottle) -> None:
    proposal = ask(agent_a)
    decisions.reject(proposal.pk, actor=operator, seen_digest=seen(proposal), note="no")
    assert "None of the selected proposals is pending" in rejecting(olivia, proposal)


def test_a_viewer_has_no_such_action(vera: Client, olivia: Client, agent_a: Bottle) -> None:
    proposal = ask(agent_a)
    page = rejecting(olivia, proposal)
    assert "reject_selected" not in vera.get(CHANGELIST).text
    rejecting(vera, proposal, confirmed="yes", note="no", **digests(page))
    assert Proposal.objects.get().is_pending


def test_the_action_needs_the_csrf_token(operator: User, agent_a: Bottle) -> None:
    proposal = ask(agent_a)
    client = browser_of(operator, enforce_csrf_checks=True)
    rejecting(client, proposal, confirmed="yes", note="no", **{f"seen-{proposal.pk}": seen(proposal)})
    assert Proposal.objects.get().is_pending


def test_the_header_leads_to_the_queue(root: Client) -> None:
    page = root.get("/admin/").text
    assert "bot-bottle" in page
    assert re.search(r'<a href="/"[^>]*>Queue</a>', page)
