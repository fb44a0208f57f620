"""Every command of ours takes --json, and what it prints then is JSON. The servers are in tests/processes."""

from __future__ import annotations

import argparse
import json
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command, get_commands, load_command_class

from botbottle.backends.base import Unavailable
from supervise.bottles import lifecycle, rebuild
from supervise.bottles import records as bottles
from supervise.management.commands import demo
from supervise.models import Rebuild

OURS = {"botbottle", "egress", "supervise"}
COMMANDS = sorted(name for name, app in get_commands().items() if app in OURS)


def parser_of(name: str) -> argparse.ArgumentParser:
    return load_command_class(str(get_commands()[name]), name).create_parser("manage.py", name)


def verbs_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    nested = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return {verb: inner for action in nested for verb, inner in action.choices.items()}


def test_the_commands_are_found() -> None:
    assert {"up", "web", "demo", "rebuild", "bottle", "proposals", "verify_audit"} <= set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_every_verb_of_it_takes_json(name: str) -> None:
    parser = parser_of(name)
    for verb, inner in {"": parser, **verbs_of(parser)}.items():
        assert "--json" in inner._option_string_actions, f"{name} {verb}"


# --- rebuild


@pytest.fixture
def queued(db: None) -> Rebuild:
    bottle = bottles.create("one", author="tests").bottle
    return Rebuild.objects.create(bottle=bottle, author="tests", dockerfile="FROM a\n", digest="0")


def test_rebuild_tells_what_is_live(manage: Any, queued: Rebuild, monkeypatch: pytest.MonkeyPatch) -> None:
    def perform(number: int) -> None:
        Rebuild.objects.filter(pk=number).update(phase=Rebuild.Phase.LIVE, image="built:1")

    monkeypatch.setattr(rebuild, "perform", perform)
    told = manage("rebuild", str(queued.pk), "--json").json
    assert told == {
        "rebuild": queued.pk, "slug": "one", "phase": "live", "image": "built:1",
        "problem": "", "ended_at": None,
    }  # fmt: skip
    assert manage("rebuild", str(queued.pk)).output == "one: live\n"


def test_a_rebuild_that_fails_says_why_and_ends_with_an_error(
    manage: Any, queued: Rebuild, monkeypatch: pytest.MonkeyPatch
) -> None:
    def perform(number: int) -> None:
        Rebuild.objects.filter(pk=number).update(phase=Rebuild.Phase.FAILED, problem="no space left")

    monkeypatch.setattr(rebuild, "perform", perform)
    ended = manage("rebuild", str(queued.pk), "--json")
    assert (ended.json["phase"], ended.json["problem"]) == ("failed", "no space left")
    assert ended.error == "no space left"


def test_an_unknown_rebuild_is_refused(manage: Any) -> None:
    assert manage("rebuild", "77", "--json").error == "There is no rebuild 77."


# --- bottle logs


@pytest.mark.parametrize(("options", "parts"), [((), 1), (("--follow",), 2)], ids=["once", "as it comes"])
def test_a_bottles_log_is_text_in_json(
    manage: Any, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], parts: int
) -> None:
    monkeypatch.setattr(lifecycle, "logs", lambda slug, follow: iter([b"\x1b[31mred\n\xe2\x9c", b"\x93\n"]))
    lines = [
        json.loads(line)
        for line in manage("bottle", "logs", "one", "--json", *options).output.split("\n")[:-1]
    ]
    assert [line["slug"] for line in lines] == ["one"] * parts
    assert "".join(line["text"] for line in lines) == "red\n✓\n"


# --- demo


def test_a_demo_that_cannot_begin_says_so_in_json(monkeypatch: pytest.MonkeyPatch) -> None:
    class Missing:
        def available(self) -> None:
            raise Unavailable("bubblewrap is not installed")

    monkeypatch.setattr(demo.backends, "get", lambda *_: Missing())
    output = StringIO()
    with pytest.raises(CommandError, match="bubblewrap"):
        call_command("demo", "--json", stdout=output)
    ended = {"step": "ended", "succeeded": False, "problem": "bubblewrap is not installed"}
    assert json.loads(output.getvalue()) == ended
