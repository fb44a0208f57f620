"""The agents' own command lines connect to a running bottle endpoint: no model, no account, no network."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.clients.test_inspector import TOOLS
from tests.support.isolated_clients import Bottle, Clients, Finished, Island

pytestmark = pytest.mark.clients

WRONG_TOKEN = "not-a-token"


def claude(island: Island, clients: Clients, home: Path, bottle: Bottle) -> Finished:
    server = {"type": "http", "url": bottle.url, "headers": {"Authorization": bottle.authorization}}
    (home / ".claude.json").write_text(json.dumps({"mcpServers": {"supervise": server}}))
    return island.run(clients.claude, "mcp", "list", home=home)


def gemini(island: Island, clients: Clients, home: Path, bottle: Bottle) -> Finished:
    server = {
        "httpUrl": bottle.url,
        "headers": {"Authorization": bottle.authorization},
        "timeout": 60_000,
        "trust": True,
    }
    quiet = {"privacy": {"usageStatisticsEnabled": False}, "general": {"enableAutoUpdate": False}}
    folder = home / ".gemini"
    folder.mkdir()
    (folder / "settings.json").write_text(json.dumps({"mcpServers": {"supervise": server}, **quiet}))
    (folder / "trustedFolders.json").write_text(json.dumps({str(home / "work"): "TRUST_FOLDER"}))
    return island.run(clients.node, clients.script("gemini"), "mcp", "list", home=home)


def opencode(island: Island, clients: Clients, home: Path, bottle: Bottle) -> Finished:
    server = {
        "type": "remote",
        "url": bottle.url,
        "enabled": True,
        "oauth": False,
        "headers": {"Authorization": bottle.authorization},
        "timeout": 60_000,
    }
    (home / "work").mkdir()
    settings = {"autoupdate": False, "mcp": {"supervise": server}}
    (home / "work" / "opencode.json").write_text(json.dumps(settings))
    return island.run(clients.opencode, "mcp", "list", home=home)


Lister = Callable[[Island, Clients, Path, Bottle], Finished]
LISTERS = pytest.mark.parametrize("lister", [claude, gemini, opencode])
# Claude says "✔ Connected", Gemini "✓ supervise: … - Connected", OpenCode "✓ supervise connected".
CONNECTED = re.compile(r"(✔ Connected|✓ supervise.*\bconnected\b)", re.IGNORECASE)


@LISTERS
def test_the_client_connects(island: Island, clients: Clients, home: Path, lister: Lister) -> None:
    finished = lister(island, clients, home, island.bottle)
    assert CONNECTED.search(finished.said), finished.said


@LISTERS
def test_the_client_does_not_connect_with_a_wrong_token(
    island: Island, clients: Clients, home: Path, lister: Lister
) -> None:
    """Their exit code is 0 all the same, so this shows that the words we look for mean something."""
    finished = lister(island, clients, home, Bottle(island.bottle.url, WRONG_TOKEN))
    assert finished.code is not None, finished.said
    assert "supervise" in finished.said
    assert not CONNECTED.search(finished.said), finished.said


def codex_status(island: Island, clients: Clients, home: Path, token: str) -> dict[str, Any]:
    """What Codex's app server knows about our server: `codex mcp list` alone does not connect."""
    (home / ".codex").mkdir()
    (home / ".codex" / "config.toml").write_text(
        "check_for_update_on_startup = false\n"
        "[analytics]\nenabled = false\n"
        "[mcp_servers.supervise]\n"
        f'url = "{island.bottle.url}"\nbearer_token_env_var = "BOTTLE_TOKEN"\ntool_timeout_sec = 40\n'
    )
    us = {"name": "test", "title": "test", "version": "0"}
    messages = [
        {"id": 0, "method": "initialize", "params": {"clientInfo": us}},
        {"method": "initialized"},
        {"id": 1, "method": "mcpServerStatus/list", "params": {}},
    ]
    finished = island.run(
        *(clients.node, clients.script("codex"), "app-server"),
        home=home,
        env={"BOTTLE_TOKEN": token},
        feed="".join(json.dumps(message) + "\n" for message in messages),
        until='{"id":1,',
    )
    answers = [json.loads(line) for line in finished.out.splitlines()]
    found = [answer["result"]["data"] for answer in answers if answer.get("id") == 1]
    assert found, finished.said
    (supervise,) = found[0]
    assert supervise["name"] == "supervise"
    status: dict[str, Any] = supervise
    return status


def test_codex_connects_and_sees_the_six_tools(island: Island, clients: Clients, home: Path) -> None:
    status = codex_status(island, clients, home, island.bottle.token)
    assert status["serverInfo"]["name"] == "bot-bottle-supervise"
    assert set(status["tools"]) == TOOLS


def test_codex_sees_no_tool_with_a_wrong_token(island: Island, clients: Clients, home: Path) -> None:
    assert codex_status(island, clients, home, WRONG_TOKEN)["tools"] == {}
