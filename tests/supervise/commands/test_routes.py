"""manage.py routes: looking at a bottle's routes, changing and withdrawing one from a terminal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import transaction

from botbottle.models import Bottle
from egress.policy.routes import Auth, Dlp, Route
from egress.tables import publishing, versions
from supervise.models import AuditEvent

API = Route("api.example.com", ("/a", "/b"), ("GET",), Auth("Bearer", "GITHUB_TOKEN"))
OTHER = Route("other.example.com")


@pytest.fixture
def boss(transactional_db: None) -> User:
    return User.objects.create_superuser("boss", password="correct-horse-battery")


@pytest.fixture
def bottle(agent_a: Bottle) -> Bottle:
    with transaction.atomic():
        newest = versions.lock(agent_a)
        table = newest.table.with_route(API).with_route(OTHER)
        versions.append(newest, table, author="tests", cause="tests")
    return agent_a


def payload(directory: Path, **fields: Any) -> str:
    (directory / "fields.json").write_text(json.dumps(fields))
    return str(directory / "fields.json")


def test_list_shows_all_of_each_route(manage: Any, bottle: Bottle) -> None:
    publishing.publish(bottle)
    text = manage("routes", "list", "agent-a").output
    assert text.startswith("agent-a, version 2, live\nroute api.example.com\n  path: /a\n")
    assert "auth.token_ref: GITHUB_TOKEN" in text and "gate other.example.com" in text
    told = manage("routes", "list", "agent-a", "--json").json
    assert (told["version"], told["live_version"]) == (2, 2)
    assert told["routes"] == [API.as_dict(), OTHER.as_dict()]
    assert told["gate_hosts"] == [API.host, OTHER.host]


def test_an_empty_table_says_so(manage: Any, agent_a: Bottle) -> None:
    assert "No routes" in manage("routes", "list", "agent-a").output
    assert "There is no bottle" in manage("routes", "list", "nobody").error


def test_withdraw_says_what_it_does_and_does_it(manage: Any, boss: User, bottle: Bottle) -> None:
    text = manage("routes", "withdraw", "agent-a", "api.example.com").output
    assert "open connections that use its route are cut at once" in text
    assert "− route api.example.com" in text
    assert text.endswith("withdrawn: api.example.com, version 3, live\n")
    assert versions.current(bottle).table.routes == (OTHER,)
    event = AuditEvent.objects.latest("seq")
    assert (event.action, event.actor_name) == ("route withdrawn", "boss")


def test_change_takes_a_file_of_fields(manage: Any, boss: User, bottle: Bottle, tmp_path: Path) -> None:
    file = payload(tmp_path, auth=None, dlp={"out": False}, pinned_addresses=["10.0.0.5"])
    told = manage("routes", "change", "agent-a", "api.example.com", "--payload", file, "--json").json
    wanted = Route("api.example.com", ("/a", "/b"), ("GET",), None, None, Dlp(False), ("10.0.0.5",))
    assert (told["version"], told["live_version"]) == (3, 3)
    assert told["routes"] == [wanted.as_dict(), OTHER.as_dict()]
    assert "changed credential: api.example.com; none" in told["effects"]
    assert versions.current(bottle).table.routes == (wanted, OTHER)


def test_what_cannot_be_is_one_sentence(manage: Any, boss: User, bottle: Bottle, tmp_path: Path) -> None:
    change = ("routes", "change", "agent-a", "api.example.com", "--payload")
    assert "could not be read" in manage(*change, str(tmp_path / "none.json")).error
    assert "keys of a route" in manage(*change, payload(tmp_path)).error
    assert "unknown key" in manage(*change, payload(tmp_path, colour="red")).error
    assert "nothing to change" in manage(*change, payload(tmp_path, methods=["GET"])).error
    refused = manage("routes", "withdraw", "agent-a", "nobody.example.com", "--json")
    assert refused.json["error"] == "bad_ask" and "There is no route of" in refused.error
    assert versions.current(bottle).version == 2


def test_only_the_table_that_was_seen_is_changed(manage: Any, boss: User, bottle: Bottle) -> None:
    withdraw = ("routes", "withdraw", "agent-a", "api.example.com", "--json", "--seen")
    assert manage(*withdraw, "1").json["error"] == "stale_review"
    assert manage(*withdraw, "2").json["version"] == 3


def test_it_is_done_in_somebodys_name(manage: Any, viewer: User, operator: User, bottle: Bottle) -> None:
    withdraw = ("routes", "withdraw", "agent-a", "api.example.com")
    assert "--as USERNAME" in manage(*withdraw).error
    assert "right to decide" in manage(*withdraw, "--as", "vera").error
    assert manage(*withdraw, "--as", "olivia").error == ""
    assert AuditEvent.objects.latest("seq").actor_name == "olivia"
