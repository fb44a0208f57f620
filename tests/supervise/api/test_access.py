"""Who may call the API, and what its schema says."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.core.management import call_command
from django.test import Client
from django.urls import get_resolver

from botbottle.models import Bottle
from botbottle.web.planes import Plane
from supervise import audit_check
from supervise.access import api_keys
from supervise.models import ApiKey, AuditEvent, Proposal
from tests.support.proposals import ask, seen

pytestmark = pytest.mark.django_db

READS = ["proposals/", "proposals/x/", "bottles/", "bottles/x/routes/", "history/", "schema/"]
WRITES = ["proposals/x/approve/", "proposals/x/modify/", "proposals/x/reject/"]


def test_these_are_all_the_paths_there_are() -> None:
    api = next(part for part in get_resolver().url_patterns if str(part.pattern) == "api/")
    patterns = {str(pattern.pattern) for pattern in api.url_patterns}
    known = {path.replace("proposals/x", "proposals/<str:proposal_id>") for path in READS + WRITES}
    assert patterns == {path.replace("bottles/x", "bottles/<str:slug>") for path in known}


@pytest.mark.parametrize("path", READS + WRITES)
def test_every_path_refuses_strangers(path: str) -> None:
    client = Client()
    answer = client.get(f"/api/{path}") if path in READS else client.post(f"/api/{path}")
    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"].startswith("Bearer")


@pytest.mark.parametrize("path", [path for path in READS + WRITES if path != "schema/"])
def test_every_path_refuses_users_without_permission(calling: Any, path: str) -> None:
    nobody = calling(User.objects.create_user("nobody"))
    answer = nobody.get(path) if path in READS else nobody.post(path)
    assert answer.status_code == 403
    assert "view_proposal" in answer.json()["message"]


def test_whoever_may_decide_may_look(calling: Any, agent_a: Bottle) -> None:
    user = User.objects.create_user("decider", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="decide_proposal"))
    assert calling(user).get(f"proposals/{ask(agent_a).pk}/").status_code == 200


@pytest.mark.parametrize("path", ["proposals/", "schema/"])
def test_the_agent_plane_does_not_serve_it(api: Any, path: str) -> None:
    answer = api.client.get(f"/api/{path}", headers={"Authorization": f"Bearer {api.key}"}, plane=Plane.AGENT)
    assert answer.status_code == 404


@pytest.mark.parametrize(
    "header", ["Bearer", "Bearer ", "Bearer bbk_wrong", "Bearer bbt_bottle", "bearer \udcff", "Bearer a b"]
)
def test_a_wrong_key_is_401(header: str) -> None:
    answer = Client().get("/api/proposals/", headers={"Authorization": header})
    assert answer.status_code == 401
    assert "apikey create" in answer.json()["message"]


def test_a_bottles_token_is_no_key(agent_a: Bottle) -> None:
    from supervise.bottles import records as bottles

    token = bottles.rotate_token("agent-a", author="tests").token
    assert Client().get("/api/proposals/", headers={"Authorization": f"Bearer {token}"}).status_code == 401


def test_the_key_of_an_inactive_user_is_401(api: Any, operator: User) -> None:
    User.objects.filter(pk=operator.pk).update(is_active=False)
    assert api.get("proposals/").status_code == 401


def test_without_staff_status_a_key_opens_nothing(api: Any, operator: User, agent_a: Bottle) -> None:
    proposal = ask(agent_a)
    User.objects.filter(pk=operator.pk).update(is_staff=False)
    assert api.get("proposals/").status_code == 403
    answer = api.post(f"proposals/{proposal.pk}/approve/", seen_digest=seen(proposal))
    assert answer.status_code == 403
    assert Proposal.objects.get(pk=proposal.pk).is_pending


def test_a_key_does_not_approve_what_was_filed_in_its_users_name(api: Any, agent_a: Bottle) -> None:
    proposal = ask(agent_a)
    Proposal.objects.filter(pk=proposal.pk).update(filed_by="olivia")
    refused = api.post(f"proposals/{proposal.pk}/approve/", seen_digest=seen(proposal))
    assert (refused.status_code, "at the console" in refused.json()["message"]) == (403, True)
    rejected = api.post(f"proposals/{proposal.pk}/reject/", seen_digest=seen(proposal), note="No.")
    assert rejected.status_code == 200


def test_a_deleted_key_stops_working(api: Any) -> None:
    assert api.get("proposals/").status_code == 200
    api_keys.delete(ApiKey.objects.get().pk, author="tests")
    assert api.get("proposals/").status_code == 401


def test_only_the_digest_of_a_key_is_kept_and_the_record_names_no_key(operator: User) -> None:
    key = api_keys.create(operator, "chat bot", author="root (command line)")
    row = ApiKey.objects.get()
    assert key.startswith("bbk_")
    assert key not in row.digest
    event = AuditEvent.objects.latest("seq")
    assert (event.action, event.actor_name) == ("api key created", "root (command line)")
    assert event.details == {"user": "olivia", "name": "chat bot"}
    assert audit_check.verify()[1] is None


def test_a_session_may_look_but_needs_the_csrf_token_to_decide(agent_a: Bottle, operator: User) -> None:
    proposal = ask(agent_a)
    path, body = f"/api/proposals/{proposal.pk}/approve/", json.dumps({"seen_digest": seen(proposal)})
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(operator)
    assert browser.get("/api/proposals/").status_code == 200
    refused = browser.post(path, body, content_type="application/json")
    assert refused.status_code == 403
    assert Proposal.objects.get(pk=proposal.pk).is_pending
    token = "a" * 32
    browser.cookies["bot_bottle_csrf"] = token
    allowed = browser.post(path, body, content_type="application/json", headers={"X-CSRFToken": token})
    assert allowed.status_code == 200


def test_forms_are_refused_so_that_no_page_can_post_one(operator: User, agent_a: Bottle) -> None:
    browser = Client()
    browser.force_login(operator)
    answer = browser.post(f"/api/proposals/{ask(agent_a).pk}/approve/", {"seen_digest": "x"})
    assert answer.status_code == 415


def test_the_schema_describes_every_path(api: Any) -> None:
    schema = json.loads(api.get("schema/", format="json").content)
    known = {f"/api/{path}" for path in READS + WRITES if path != "schema/"}
    known = {path.replace("proposals/x", "proposals/{proposal_id}") for path in known}
    assert set(schema["paths"]) == {path.replace("bottles/x", "bottles/{slug}") for path in known}
    approve = schema["paths"]["/api/proposals/{proposal_id}/approve/"]["post"]
    assert {"apiKey": []} in approve["security"]
    assert set(approve["responses"]) >= {"200", "202", "400", "403", "404", "409"}


def test_the_schema_is_valid_openapi_and_leaves_nothing_out(tmp_path: Any) -> None:
    call_command("spectacular", "--validate", "--fail-on-warn", "--file", str(tmp_path / "schema.yml"))
