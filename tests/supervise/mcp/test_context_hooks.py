"""The start hooks that are put into bottles: they run as they are, and leave other settings alone."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from botbottle.core.plan_types import BackendError
from botbottle.provision import context_hooks
from tests.support.requirements import require

OURS = {"hooks": [{"type": "command", "command": context_hooks.CLAUDE_COMMAND, "timeout": 15}]}
THEIRS = {"matcher": "startup", "hooks": [{"type": "command", "command": "date"}]}
MIXED = {"hooks": [*THEIRS["hooks"], *OURS["hooks"]]}  # somebody's own arrangement


@pytest.mark.parametrize(("kind", "number"), [("claude", 1), ("opencode", 1), ("codex", 0), ("none", 0)])
def test_each_kind_gets_its_files(kind: str, number: int) -> None:
    assert len(context_hooks.files(kind)) == number


@pytest.mark.parametrize(
    ("existing", "expected"),
    [
        (None, {"hooks": {"SessionStart": [OURS]}}),
        ("", {"hooks": {"SessionStart": [OURS]}}),
        ("\ufeff{}", {"hooks": {"SessionStart": [OURS]}}),
        ({"model": "opus", "hooks": {"Stop": [THEIRS]}},
         {"model": "opus", "hooks": {"Stop": [THEIRS], "SessionStart": [OURS]}}),
        ({"hooks": {"SessionStart": [THEIRS]}}, {"hooks": {"SessionStart": [THEIRS, OURS]}}),
        ({"hooks": {"SessionStart": [OURS, THEIRS]}}, {"hooks": {"SessionStart": [THEIRS, OURS]}}),
        ({"hooks": {"SessionStart": [MIXED, "x", {}]}}, {"hooks": {"SessionStart": [MIXED, "x", {}, OURS]}}),
    ],
)  # fmt: skip
def test_the_hook_is_added_once_beside_what_is_there(existing: Any, expected: Any) -> None:
    text = json.dumps(existing) if isinstance(existing, dict) else existing
    merged = context_hooks.claude_settings(text)
    assert json.loads(merged) == expected
    assert context_hooks.claude_settings(merged) == merged


@pytest.mark.parametrize(
    "existing",
    ["{", "[]", "// a comment\n{}", '{"hooks": []}', '{"hooks": {"SessionStart": {}}}', "[" * 99_999],
)
def test_settings_that_cannot_be_read_are_refused(existing: str) -> None:
    with pytest.raises(BackendError, match=r"settings\.json.*Put it right"):
        context_hooks.claude_settings(existing)


def test_the_script_is_old_python_and_needs_no_server_to_say_something(tmp_path: Path) -> None:
    (file,) = context_hooks.files("claude")
    ast.parse(file.content, feature_version=(3, 8))
    script = tmp_path / "hook.py"
    script.write_text(file.content.replace("9100", "9"))  # nobody listens there
    for given in ("", "junk", '{"session_id": 3}', '{"session_id": "a\\nb"}', '{"session_id": "s1"}'):
        ran = subprocess.run(
            [sys.executable, "-I", "-S", str(script)],
            input=given, capture_output=True, text=True, timeout=30, check=False, env={},
        )  # fmt: skip
        assert (ran.returncode, ran.stderr) == (0, "")
        assert ran.stdout.startswith("bot-bottle: the session context cannot be had now (")


@pytest.mark.tools
def test_the_plugin_keeps_a_sessions_block_until_it_is_compacted(tmp_path: Path) -> None:
    node = shutil.which("node")
    require(node, "node", "apt-get install nodejs")
    (file,) = context_hooks.files("opencode")
    (tmp_path / "plugin.mjs").write_text(file.content)
    (tmp_path / "host.mjs").write_text("""
        import * as plugin from "./plugin.mjs"
        const asked = []
        let status = 500
        globalThis.fetch = async (address) => {
          asked.push(address)
          return { ok: status === 200, status, text: async () => `block ${asked.length}` }
        }
        const hooks = await plugin.BotBottleContext({})
        const system = []
        const turn = (sessionID) => hooks["experimental.chat.system.transform"]({ sessionID }, { system })
        await turn("s1")
        status = 200
        await turn("s1"); await turn("s1"); await turn("s2")
        await hooks.event({ event: { type: "session.compacted", properties: { sessionID: "s1" } } })
        await turn("s1"); await turn("s2"); await turn(undefined); await turn("a b")
        console.log(JSON.stringify({ exports: Object.keys(plugin), asked, system }))
    """)
    ran = subprocess.run(
        [str(node), str(tmp_path / "host.mjs")],
        capture_output=True, text=True, timeout=60, check=False, env={},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    seen = json.loads(ran.stdout)
    assert seen["exports"] == ["BotBottleContext"]  # OpenCode runs every export as a plugin
    address = "http://127.0.0.1:9100/session-context?format=text"
    sessions = ["s1", "s1", "s2", "s1"]
    assert seen["asked"] == [*(f"{address}&session_id={name}" for name in sessions), address, address]
    assert "cannot be had now (it answered 500)" in seen["system"][0]
    assert seen["system"][1:] == ["block 2", "block 2", "block 3", "block 4", "block 3", "block 5", "block 6"]
