"""The agents' own command lines connect to a running bottle endpoint: no model, no account, no network."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.clients.test_inspector import TOOLS
from tests.support.isolated_clients import Clients, Finished, Island

pytestmark = pytest.mark.clients

WRONG_TOKEN = "not-a-token"


def entries(island: Island, **more: Any) -> dict[str, dict[str, Any]]:
    """The same endpoint twice in a client's settings: with the bottle's token, and with a wrong one."""
    tokens = {"supervise": island.bottle.token, "mistaken": WRONG_TOKEN}
    return {name: {**more, "headers": {"Authorization": f"Bearer {token}"}} for name, token in tokens.items()}


def claude(island: Island, clients: Clients, home: Path) -> Finished:
    servers = entries(island, type="http", url=island.bottle.url)
    (home / ".claude.json").write_text(json.dumps({"mcpServers": servers}))
    return island.run(clients.claude, "mcp", "list", home=home)


def gemini(island: Island, clients: Clients, home: Path) -> Finished:
    servers = entries(island, httpUrl=island.bottle.url, timeout=60_000, trust=True)
    quiet = {"privacy": {"usageStatisticsEnabled": False}, "general": {"enableAutoUpdate": False}}
    folder = home / ".gemini"
    folder.mkdir()
    (folder / "settings.json").write_text(json.dumps({"mcpServers": servers, **quiet}))
    (folder / "trustedFolders.json").write_text(json.dumps({str(home / "work"): "TRUST_FOLDER"}))
    return island.run(clients.node, clients.script("gemini"), "mcp", "list", home=home)


def opencode(island: Island, clients: Clients, home: Path) -> Finished:
    common = {"type": "remote", "url": island.bottle.url, "enabled": True, "oauth": False, "timeout": 60_000}
    (home / "work").mkdir()
    settings = {"autoupdate": False, "mcp": entries(island, **common)}
    (home / "work" / "opencode.json").write_text(json.dumps(settings))
    return island.run(clients.opencode, "mcp", "list", home=home)


Lister = Callable[[Island, Clients, Path], Finished]
# Claude says "✔ Connected", Gemini "✓ supervise: … - Connected", OpenCode "✓ supervise connected".
CONNECTED = re.compile(r"(✔ Connected|✓ \w+.*\bconnected\b)", re.IGNORECASE)


@pytest.mark.parametrize("lister", [claude, gemini, opencode])
def test_the_client_connects_with_the_bottles_token_and_with_no_other(
    island: Island, clients: Clients, home: Path, lister: Lister
) -> None:
    """Its exit code is 0 all the same, so the wrong token shows that the words we look for mean something."""
    finished = lister(island, clients, home)
    assert finished.code is not None, finished.said
    lines = finished.said.splitlines()
    about = {name: [line for line in lines if name in line] for name in ("supervise", "mistaken")}
    assert all(about.values()), finished.said
    assert [bool(CONNECTED.search("\n".join(about[name]))) for name in about] == [True, False], finished.said


CODEX_ENTRY = """[mcp_servers.{name}]
url = "{url}"
bearer_token_env_var = "{variable}"
tool_timeout_sec = 40
"""


def codex_status(island: Island, clients: Clients, home: Path) -> dict[str, Any]:
    """What Codex's app server knows about our server: `codex mcp list` alone does not connect."""
    (home / ".codex").mkdir()
    tokens = {"supervise": island.bottle.token, "mistaken": WRONG_TOKEN}
    variables = {f"TOKEN_OF_{name}": token for name, token in tokens.items()}
    (home / ".codex" / "config.toml").write_text(
        "check_for_update_on_startup = false\n[analytics]\nenabled = false\n"
        + "".join(
            CODEX_ENTRY.format(name=name, url=island.bottle.url, variable=f"TOKEN_OF_{name}")
            for name in tokens
        )
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
        env=variables,
        feed="".join(json.dumps(message) + "\n" for message in messages),
        until='{"id":1,',
    )
    answers = [json.loads(line) for line in finished.out.splitlines()]
    found = [answer["result"]["data"] for answer in answers if answer.get("id") == 1]
    assert found, finished.said
    return {each["name"]: each for each in found[0]}


def test_codex_sees_the_six_tools_with_the_bottles_token_and_none_with_another(
    island: Island, clients: Clients, home: Path
) -> None:
    status = codex_status(island, clients, home)
    assert set(status) == {"supervise", "mistaken"}
    assert status["supervise"]["serverInfo"]["name"] == "bot-bottle-supervise"
    assert set(status["supervise"]["tools"]) == TOOLS
    assert status["mistaken"]["tools"] == {}
