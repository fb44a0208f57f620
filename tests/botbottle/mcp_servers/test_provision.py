"""Each kind of agent finds the managed servers in its configuration, beside ours."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest

from botbottle.provision import agents

URL = "http://127.0.0.1:9100/mcp"


def entries(kind: str, files: dict[str, str]) -> dict[str, Any]:
    match kind:
        case "claude":
            found = json.loads(files[agents.CLAUDE])["mcpServers"]
        case "codex":
            found = tomllib.loads(files[agents.CODEX])["mcp_servers"]
        case "gemini":
            found = json.loads(files[agents.GEMINI])["mcpServers"]
        case _:
            found = json.loads(files[agents.OPENCODE])["mcp"]
    return {name: entry.get("url") or entry.get("httpUrl") for name, entry in found.items()}


@pytest.mark.parametrize("kind", ["claude", "codex", "gemini", "opencode"])
def test_every_server_has_an_entry(kind: str) -> None:
    made = agents.files(
        kind, mcp_url=URL, existing=lambda _: None, supervise=True, servers=("notes", "files-1")
    )
    files = {file.path: file.content for file in made}
    assert entries(kind, files) == {
        "supervise": URL,
        "notes": f"{URL}/servers/notes",
        "files-1": f"{URL}/servers/files-1",
    }
    again = agents.files(kind, mcp_url=URL, existing=files.get, supervise=True, servers=("notes", "files-1"))
    assert {file.path: file.content for file in again} == files, "a second start changes nothing"
