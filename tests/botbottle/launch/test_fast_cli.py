"""The short way into a bottle: what may take it, and what it costs."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.exceptions import ValidationError

from botbottle.launch import fast_cli, start
from botbottle.models import valid_slug
from tests.support import ROOT


@pytest.mark.parametrize("slug", [
    "a", "a-b", "0", "a" * 40, "",
    "a" * 41, "-a", "a-", "-", "A", "a.b", "a/b", "..", "a\n", "é", "a_b", "a b",
])  # fmt: skip
def test_it_takes_the_names_that_the_database_takes(slug: str) -> None:
    try:
        valid_slug(slug)
        valid = True
    except ValidationError:
        valid = False
    assert fast_cli._is_name(slug) is valid


@pytest.mark.parametrize("words", [
    ["run"], ["run", "../x"], ["run", "--rm", "x"], ["run", "x", "true"], ["run", "x", "--rm", "--", "true"],
    ["exec", "x"], ["exec", "x", "--"], ["exec", "--json", "x", "--", "true"], ["attach", "x", "--", "true"],
    ["run", "x", "--", "true"],
])  # fmt: skip
def test_what_is_not_plain_or_not_ready_goes_the_long_way(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BOTTLE_HOME", str(tmp_path))
    assert fast_cli.try_fast_cli(words) is None
    assert not list(tmp_path.iterdir()), "nothing was done"


def test_sockets_that_nobody_listens_on_are_not_there(tmp_path: Path) -> None:
    bottle = tmp_path / ("long-" * 30)  # a name that no socket's address holds
    assert not start.is_reachable(bottle, supervise=True)
    (bottle / "sockets").mkdir(parents=True)
    assert not start.is_reachable(bottle, supervise=True)
    listening = []
    for name in (start.PROXY, start.AGENT):
        assert not start.is_reachable(bottle, supervise=True)
        made = socket.socket(socket.AF_UNIX)
        link = tmp_path / Path(name).name
        made.bind(str(link))
        made.listen()
        link.rename(bottle / name)
        listening.append(made)
        assert start.is_reachable(bottle, supervise=name == start.AGENT), "as many as it is to have"
    assert not start.is_reachable(bottle, supervise=False), "it could ask"
    for each in listening:
        each.close()
    assert not start.is_reachable(bottle, supervise=True), "what a killed process left is no socket"


def test_it_imports_nothing_that_is_slow() -> None:
    program = "import sys, botbottle.launch.fast_cli, botbottle.backends.local.backend; print(*sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    slow = {
        "django",
        "yaml",
        "cryptography",
        "asyncio",
        "subprocess",
        "socket",
        "logging",
        "tempfile",
        "http",
    }
    assert not slow & set(ran.stdout.split())
