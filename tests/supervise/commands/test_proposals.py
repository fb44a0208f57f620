"""manage.py proposals: looking and deciding from a terminal."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User

from botbottle.models import Bottle
from egress.tables import versions
from supervise.models import Decision, Proposal
from supervise.proposals import decisions
from tests.support.proposals import HOSTILE, ask, ask_image, seen


@pytest.fixture
def boss(transactional_db: None) -> User:
    return User.objects.create_superuser("boss", password="correct-horse-battery")


def test_list_shows_open_proposals(manage: Any, agent_a: Bottle, operator: User) -> None:
    pending, refused = ask(agent_a), ask(agent_a, "other.example.com")
    decisions.reject(refused.pk, actor=operator, seen_digest=seen(refused), note="No.")
    assert [line["id"] for line in manage("proposals", "list", "--json").json] == [str(pending.pk)]
    text = manage("proposals", "list").output
    assert "api.example.com" in text
    assert "other.example.com" not in text
    everything = manage("proposals", "list", "--all", "--json").json
    assert {line["id"] for line in everything} == {str(pending.pk), str(refused.pk)}
    assert len(manage("proposals", "list", "--status", "rejected", "--json").json) == 1


def test_an_empty_list_says_so(manage: Any) -> None:
    assert manage("proposals", "list").output == "No proposals.\n"
    assert manage("proposals", "list", "--json").json == []


def test_show_tells_what_a_yes_would_do(manage: Any, agent_a: Bottle) -> None:
    proposal = ask(agent_a, path_allowlist=["/v1"])
    text = manage("proposals", "show", str(proposal.pk)).output
    assert "  | I need it." in text
    assert "newly reachable: all methods on api.example.com under /v1" in text
    assert "+ route api.example.com" in text
    assert seen(proposal) in text
    shown = manage("proposals", "show", str(proposal.pk), "--json").json
    assert shown["review"]["seen_digest"] == seen(proposal)


@pytest.mark.parametrize("verb", ["list", "show"])
@pytest.mark.parametrize("flag", [(), ("--json",)])
def test_hostile_text_is_inert_in_the_terminal(
    manage: Any, agent_a: Bottle, verb: str, flag: tuple[str, ...]
) -> None:
    proposal = ask(agent_a, why=HOSTILE + "\nstatus approved")
    arguments = [str(proposal.pk)] if verb == "show" else []
    text = manage("proposals", verb, *arguments, *flag).output
    assert not [c for c in text if (ord(c) < 0x20 and c != "\n") or c in "\x7f\u202e\u2028\u200b\ud800"]
    assert not any(line.startswith("status approved") for line in text.splitlines())


def test_approve_prints_what_it_applies_and_applies_it(manage: Any, agent_a: Bottle, boss: User) -> None:
    proposal = ask(agent_a)
    ran = manage("proposals", "approve", str(proposal.pk), "--note", "Fine.")
    assert ran.error == ""
    assert "+ route api.example.com" in ran.output
    assert "approved by boss: live in version 2" in ran.output
    decision = Decision.objects.get(proposal=proposal)
    assert (decision.actor, decision.notes, decision.applied) == (boss, "Fine.", "live")
    assert versions.current(agent_a).table.get("api.example.com") is not None


def test_approve_with_json_prints_one_value(manage: Any, agent_a: Bottle, boss: User) -> None:
    result = manage("proposals", "approve", str(ask(agent_a).pk), "--json").json
    assert (result["status"], result["decision"]["applied"]) == ("approved", "live")


def test_an_id_may_be_cut_to_8_characters(manage: Any, agent_a: Bottle, boss: User) -> None:
    proposal = ask(agent_a)
    assert manage("proposals", "approve", str(proposal.pk)[:8]).error == ""
    assert Proposal.objects.get(pk=proposal.pk).status == "approved"


@pytest.mark.parametrize("text", ["1234567", "zzzzzzzz", "", "\x1b[31m12345678", "0" * 33])
def test_what_is_no_id_is_refused(manage: Any, boss: User, text: str) -> None:
    error = manage("proposals", "approve", "--", text).error
    assert "not a proposal's id" in error
    assert error.isprintable()


def test_an_id_that_fits_several_is_refused(manage: Any, agent_a: Bottle, boss: User) -> None:
    for number in (1, 2):
        proposal = ask(agent_a, f"n{number}.example.com")
        Proposal.objects.filter(pk=proposal.pk).update(id=f"abcdef01-0000-4000-8000-00000000000{number}")
    assert "Several proposals" in manage("proposals", "approve", "abcdef01").error
    assert manage("proposals", "show", "abcdef01-0000-4000-8000-000000000002").error == ""


def test_the_second_decision_fails_and_says_who_was_first(
    manage: Any, agent_a: Bottle, operator: User
) -> None:
    proposal = ask(agent_a)
    decisions.reject(proposal.pk, actor=operator, seen_digest=seen(proposal), note="No.")
    User.objects.create_superuser("boss")
    assert manage("proposals", "approve", str(proposal.pk)).error == "Already rejected by olivia."
    refused = manage("proposals", "approve", str(proposal.pk), "--json")
    assert refused.error == "Already rejected by olivia."
    assert (refused.json["error"], refused.json["decided_by"]) == ("already_decided", "olivia")


def test_a_script_can_pass_the_digest_it_saw(manage: Any, agent_a: Bottle, boss: User) -> None:
    narrow, wide = ask(agent_a, path_allowlist=["/v1"]), ask(agent_a)
    old = seen(wide)
    assert manage("proposals", "approve", str(narrow.pk), "--digest", seen(narrow)).error == ""
    assert "changed since you looked" in manage("proposals", "approve", str(wide.pk), "--digest", old).error
    assert manage("proposals", "approve", str(wide.pk), "--digest", seen(wide)).error == ""


def test_modify_shows_and_applies_the_payload_from_a_file(
    manage: Any, agent_a: Bottle, boss: User, tmp_path: Path
) -> None:
    proposal = ask(agent_a)
    file = tmp_path / "payload.json"
    file.write_text(json.dumps({"host": "api.example.com", "methods": ["GET"]}))
    ran = manage("proposals", "modify", str(proposal.pk), "--payload", str(file))
    assert "newly reachable: GET on all paths of api.example.com" in ran.output
    assert "modified by boss" in ran.output
    assert 'not granted    {"methods": "all"}' in ran.output


def test_modify_reads_standard_input(
    manage: Any, agent_a: Bottle, boss: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", StringIO('{"host": "api.example.com", "methods": ["GET"]}'))
    proposal = ask(agent_a)
    assert manage("proposals", "modify", str(proposal.pk), "--payload", "-").error == ""


@pytest.mark.parametrize("text", ["{", "[]", "null", "{}", '"x"', '{"host": "evil.example.net"}'])
def test_modify_refuses_a_bad_payload(
    manage: Any, agent_a: Bottle, boss: User, tmp_path: Path, *, text: str
) -> None:
    file = tmp_path / "payload.json"
    file.write_text(text)
    proposal = ask(agent_a)
    assert manage("proposals", "modify", str(proposal.pk), "--payload", str(file)).error
    assert Proposal.objects.get(pk=proposal.pk).is_pending


def test_reject_needs_a_reason(manage: Any, agent_a: Bottle, boss: User) -> None:
    proposal = ask(agent_a)
    assert "--note" in manage("proposals", "reject", str(proposal.pk)).error
    assert "Say why" in manage("proposals", "reject", str(proposal.pk), "--note", " ").error
    assert manage("proposals", "reject", str(proposal.pk), "--note", "No.").error == ""
    assert Decision.objects.get(proposal=proposal).notes == "No."


def test_who_decides_must_be_clear(manage: Any, agent_a: Bottle, boss: User, operator: User) -> None:
    User.objects.create_superuser("chief")
    first, second = ask(agent_a), ask(agent_a, "other.example.com")
    assert "--as USERNAME" in manage("proposals", "approve", str(first.pk)).error
    assert manage("proposals", "approve", str(first.pk), "--as", "olivia").error == ""
    assert "no active operator" in manage("proposals", "approve", str(second.pk), "--as", "nobody").error
    User.objects.create_user("intern")
    assert "decide_proposal" in manage("proposals", "approve", str(second.pk), "--as", "intern").error
    assert Proposal.objects.get(pk=second.pk).is_pending


def test_the_first_of_two_needed_approvals_is_recorded(
    manage: Any, agent_a: Bottle, boss: User, operator: User, settings: Any
) -> None:
    settings.SUPERVISE_QUORUM = 2
    proposal = ask_image(agent_a)
    first = manage("proposals", "approve", str(proposal.pk), "--as", "boss")
    assert "recorded: 1 of 2 approvals (boss)" in first.output
    second = manage("proposals", "approve", str(proposal.pk), "--as", "olivia", "--json")
    assert second.json["status"] == "approved"
    assert "recorded" in manage("proposals", "show", str(proposal.pk)).output
