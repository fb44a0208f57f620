"""manage.py bottle, apikey and verify_audit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection, transaction

from botbottle.models import Bottle
from supervise.bottles import records as bottles
from supervise.models import ApiKey, AuditEvent
from tests.support import ROOT
from tests.support.database_reset import without_triggers
from tests.support.proposals import ask
from tests.support.server import KEPT_VARIABLES


@pytest.mark.parametrize("order", [("create", "one", "--json"), ("--json", "create", "one")])
def test_json_may_stand_before_or_after_the_verb(manage: Any, order: tuple[str, ...]) -> None:
    assert set(manage("bottle", *order).json) == {"slug", "token", "mcp_url", "proxy_url"}


def test_create_prints_a_token_that_works_and_is_not_kept(manage: Any, settings: Any) -> None:
    result = manage("bottle", "create", "one", "--json").json
    bottle = Bottle.objects.get(slug="one")
    assert bottle.accepts(result["token"])
    assert result["token"] not in bottle.token_digest
    assert result["mcp_url"] == f"http://127.0.0.1:{settings.SUPERVISE_PORT}/mcp"
    assert result["proxy_url"] == f"http://one:{result['token']}@127.0.0.1:{settings.EGRESS_PORT}"


def test_create_names_the_port_a_running_server_published(manage: Any, settings: Any, tmp_path: Path) -> None:
    settings.BOTTLE_HOME = tmp_path
    (tmp_path / ".http.port").write_text('{"agent": 4711}')
    assert manage("bottle", "create", "one", "--json").json["mcp_url"] == "http://127.0.0.1:4711/mcp"


@pytest.mark.parametrize(
    ("bind", "hosts", "expected"),
    [
        ("0.0.0.0", [], "127.0.0.1"),
        ("::", [], "[::1]"),
        ("fd00::7", [], "[fd00::7]"),
        ("0.0.0.0", ["agents.example.com", "10.0.0.7"], "agents.example.com"),
    ],
)
def test_it_prints_an_address_that_an_agent_can_use(
    manage: Any, settings: Any, bind: str, hosts: list[str], expected: str
) -> None:
    settings.SUPERVISE_BIND, settings.SUPERVISE_HOSTS = bind, hosts
    url = manage("bottle", "create", "one", "--json").json["mcp_url"]
    assert url == f"http://{expected}:{settings.SUPERVISE_PORT}/mcp"


def test_create_says_what_to_do_with_the_token(manage: Any) -> None:
    text = manage("bottle", "create", "one").output
    assert "shown only now" in text
    assert "/mcp" in text


@pytest.mark.parametrize("slug", ["", "Upper", "-x", "x-", "a" * 41, "a/b", "a\nb", "..", "a\u202eb"])
def test_create_refuses_a_bad_name(manage: Any, slug: str) -> None:
    refused = manage("bottle", "create", "--json", "--", slug)
    assert "a-z, 0-9" in refused.error or "blank" in refused.error
    assert refused.json["error"] == "bad_bottle"
    assert not Bottle.objects.exists()


def test_create_refuses_a_taken_name_until_its_bottle_is_deleted(manage: Any) -> None:
    assert manage("bottle", "create", "one").error == ""
    assert "already" in manage("bottle", "create", "one").error
    assert manage("bottle", "delete", "one").error == ""
    assert manage("bottle", "create", "one").error == ""


def test_token_replaces_the_old_one(manage: Any) -> None:
    old = manage("bottle", "create", "one", "--json").json["token"]
    new = manage("bottle", "token", "one", "--json").json["token"]
    bottle = Bottle.objects.get(slug="one")
    assert bottle.accepts(new)
    assert not bottle.accepts(old)


def test_list_shows_living_bottles(manage: Any) -> None:
    assert "No bottles yet" in manage("bottle", "list").output
    for slug in ("one", "two"):
        bottles.create(slug, author="tests")
    manage("bottle", "delete", "one")
    assert manage("bottle", "list", "--json").json == [
        {"slug": "two", "backend": "local", "state": "created"}
    ]
    assert "two" in manage("bottle", "list").output


def test_delete_tells_how_many_proposals_ended_with_it(manage: Any, agent_a: Bottle) -> None:
    ask(agent_a)
    assert manage("bottle", "delete", "agent-a", "--json").json == {"slug": "agent-a", "expired": 1}


@pytest.mark.parametrize("verb", ["token", "delete"])
def test_an_unknown_bottle_is_refused(manage: Any, verb: str) -> None:
    assert "There is no bottle 'nobody'" in manage("bottle", verb, "nobody").error


def test_apikey_makes_lists_and_deletes_keys(manage: Any, operator: User) -> None:
    key = manage("apikey", "create", "--user", "olivia", "--name", "chat bot", "--json").json["key"]
    assert key.startswith("bbk_")
    listed = manage("apikey", "list", "--json")
    assert [(row["user"], row["name"]) for row in listed.json] == [("olivia", "chat bot")]
    assert key not in listed.output
    assert "chat bot" in manage("apikey", "list").output
    assert manage("apikey", "delete", str(listed.json[0]["id"])).error == ""
    assert not ApiKey.objects.exists()
    assert "No keys yet" in manage("apikey", "list").output


def test_apikey_refuses_what_is_not_there(manage: Any) -> None:
    assert "no active operator" in manage("apikey", "create", "--user", "x", "--name", "y").error
    assert "There is no API key 7" in manage("apikey", "delete", "7").error


@pytest.fixture
def anchor(agent_a: Bottle, settings: Any, tmp_path: Path) -> Path:
    """Where a check keeps how far it came."""
    settings.BOTTLE_HOME = tmp_path
    return tmp_path / "audit_anchor.json"


def test_verify_audit_says_that_it_holds_and_goes_on_from_there(manage: Any, anchor: Path) -> None:
    (row,) = AuditEvent.objects.all()
    ends = f"It ends with row 1, hash {row.hash}.\n"
    assert manage("verify_audit").output == f"The audit record is intact. Rows checked: 1.\n{ends}"
    assert (
        manage("verify_audit", "--continue").output == f"The audit record is intact. Rows checked: 0.\n{ends}"
    )
    assert manage("verify_audit", "--json").json == {
        "ok": True,
        "rows": 1,
        "continued_after": 0,
        "anchor": {"seq": 1, "hash": row.hash, "decisions": 0},
        "problem": None,
    }


def test_verify_audit_fails_when_a_row_was_changed_and_keeps_no_anchor(manage: Any, anchor: Path) -> None:
    with transaction.atomic(), connection.cursor() as cursor, without_triggers(cursor):
        AuditEvent.objects.filter(seq=1).update(actor_name="somebody else")
    assert "row 1 was changed" in manage("verify_audit").error
    broken = manage("verify_audit", "--json")
    assert (broken.json["ok"], broken.json["rows"]) == (False, 0)
    assert broken.json["problem"] == "row 1 was changed"
    assert broken.error
    assert not anchor.exists()


def test_verify_audit_knows_a_record_that_was_rewritten(manage: Any, anchor: Path) -> None:
    anchor.write_text(json.dumps({"seq": 1, "hash": "a" * 64, "decisions": 0}))
    assert "row 1 was rewritten" in manage("verify_audit").error
    assert "row 1 is no longer the one that was verified" in manage("verify_audit", "--continue").error


def _run(home: Path, *arguments: str, output: int = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    environment = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    return subprocess.run(
        [sys.executable, "manage.py", *arguments],
        cwd=ROOT,
        env={**environment, "BOTTLE_HOME": str(home)},
        stdout=output,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.process
def test_exit_codes_tell_usage_from_refusal(tmp_path: Path) -> None:
    unprepared = _run(tmp_path, "bottle", "list")
    assert unprepared.returncode == 1
    assert "make up" in unprepared.stderr
    assert _run(tmp_path, "migrate", "--verbosity", "0").returncode == 0
    assert _run(tmp_path, "bottle", "create", "one", "--json").returncode == 0
    assert _run(tmp_path, "bottle", "create", "one").returncode == 1
    assert _run(tmp_path, "bottle", "destroy", "one").returncode == 2
    assert _run(tmp_path, "proposals", "reject", "12345678").returncode == 2


@pytest.mark.process
@pytest.mark.parametrize("arguments", [("proposals", "--help"), ("migrate",)])
def test_who_has_seen_enough_of_the_output_gets_no_traceback(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ended = _run(tmp_path, *arguments, output=writing)
    finally:
        os.close(writing)
    assert (ended.returncode, ended.stderr) == (128 + signal.SIGPIPE, "")
