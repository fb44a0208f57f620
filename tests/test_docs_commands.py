"""The documents name commands that exist, and the README lists every setting of the web process."""

from __future__ import annotations

import argparse
import re

import pytest
from django.core.management import get_commands, load_command_class

from tests.support import ROOT

DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMAND = re.compile(r"manage\.py ([a-z][a-z_]+)(?: ([a-z][a-z-]+))?")
WITHOUT_DJANGO = {"egress"}  # started by manage.py itself


def named() -> list[tuple[str, str]]:
    texts = [document.read_text(encoding="utf-8") for document in DOCUMENTS]
    return sorted({found for text in texts for found in COMMAND.findall(text)})


def verbs_of(command: str) -> set[str]:
    """The subcommands; empty where a command has none."""
    parser = load_command_class("supervise", command).create_parser("manage.py", command)
    actions = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return {name for action in actions for name in action.choices}


@pytest.mark.parametrize(("command", "verb"), named())
def test_every_command_exists(command: str, verb: str) -> None:
    if command in WITHOUT_DJANGO:
        assert f'"{command}"' in (ROOT / "manage.py").read_text(encoding="utf-8")
        return
    assert command in get_commands()
    verbs = verbs_of(command) if get_commands()[command] == "supervise" else set()
    assert not verbs or not verb or verb in verbs


def test_commands_are_recognised() -> None:
    assert {("bottle", "run"), ("proposals", "approve"), ("routes", "withdraw")} <= set(named())
    assert {"run", "create"} <= verbs_of("bottle")


def settings() -> list[str]:
    source = (ROOT / "botbottle" / "settings.py").read_text(encoding="utf-8")
    names = set(re.findall(r'environment\.\w+\(\s*"([A-Z][A-Z_]+)"', source))
    return sorted(name for name in names if not name.startswith("OIDC_"))


def test_the_readme_lists_every_setting() -> None:
    assert {"SUPERVISE_PORT", "CONSOLE_HTTPS", "DATABASE_URL"} <= set(settings())
    assert [name for name in settings() if f"`{name}`" not in README] == []
