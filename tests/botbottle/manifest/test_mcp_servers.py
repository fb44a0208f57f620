"""Managed servers in a manifest: what is read, and what is refused with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from botbottle.core.plan_types import Limits, Variable
from botbottle.manifest import reader as manifest
from botbottle.manifest.mcp_servers import Spec
from botbottle.manifest.reader import BadManifest

FULL = """\
mcp_servers:
  files:
    command: python3
    args: [server.py, --root, /workspace]
    env: {TOKEN: {from_file: token}, PLAIN: a}
    host_path: servers/files
    mode: rw
    startup_timeout: 5
    cpus: 1
    memory: 256m
    pids: 32
    read_only: true
    tools: {delete_file: ask, '*': allow}
"""


def parsed(text: str) -> manifest.Manifest:
    return manifest.parse(text, "m.yaml", path=Path("/etc/bottles/m.yaml"))


def test_every_key_is_read() -> None:
    assert parsed(FULL).mcp_servers == {
        "files": Spec(
            "files",
            "python3",
            ("server.py", "--root", "/workspace"),
            {"TOKEN": Variable(from_file="/etc/bottles/token"), "PLAIN": Variable("a")},
            "/etc/bottles/servers/files",
            True,
            5.0,
            Limits(1.0, 256 * 2**20, 32),
            {"delete_file": "ask", "*": "allow"},
        )
    }


@pytest.mark.parametrize(
    ("tools", "asks"),
    [
        ({}, {"a": False}),
        ({"a": "ask"}, {"a": True, "b": False}),
        ({"*": "ask"}, {"a": True, "b": True}),
        ({"*": "ask", "a": "allow"}, {"a": False, "b": True}),
    ],
)
def test_which_calls_an_operator_decides(tools: dict[str, str], asks: dict[str, bool]) -> None:
    spec = Spec("s", "c", tools=tools)
    assert {name: spec.asks(name) for name in asks} == asks


@pytest.mark.parametrize(
    ("entry", "key", "says"),
    [
        ("{}", "command", "is required"),
        ("{command: [a]}", "command", "must be text"),
        ("{command: ''}", "command", "must name the program"),
        ("{command: a, args: b}", "args", "list of words"),
        ("{command: a, args: [1]}", "args[0]", "must be text"),
        ("{command: a, env: [b]}", "env", "mapping of names"),
        ("{command: a, env: {HTTPS_PROXY: b}}", "env.HTTPS_PROXY", "sets this itself"),
        ("{command: a, mode: x}", "mode", "one of ro, rw"),
        ("{command: a, startup_timeout: 0}", "startup_timeout", "from 1 to 3600"),
        ("{command: a, startup_timeout: true}", "startup_timeout", "from 1 to 3600"),
        ("{command: a, memory: 1k}", "memory", "at least 32m"),
        ("{command: a, pids: 1}", "pids", "from 16"),
        ("{command: a, cpus: 0}", "cpus", "from 0.01"),
        ("{command: a, read_only: false}", "read_only", "always read-only"),
        ("{command: a, tools: {x: maybe}}", "tools.x", "ask or allow"),
        ("{command: a, tools: {'a b': ask}}", "tools", "128 characters"),
        ("{command: a, cwd: /x}", "cwd", ""),
    ],
)
def test_what_is_refused(entry: str, key: str, says: str) -> None:
    with pytest.raises(BadManifest) as refused:
        parsed(f"mcp_servers:\n  s: {entry}\n")
    assert "line 2" in str(refused.value)
    assert f"mcp_servers.s.{key}:" in str(refused.value)
    assert says in str(refused.value)


def test_without_the_agent_plane_there_are_none() -> None:
    with pytest.raises(BadManifest, match="reached as supervise is"):
        parsed("supervise: false\nmcp_servers: {s: {command: a}}\n")
