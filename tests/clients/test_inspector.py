"""The MCP Inspector's command line against a running bottle endpoint, in both protocol eras."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.clients.island import Clients, Finished, Island

pytestmark = pytest.mark.clients

TOOLS = {
    "egress-block",
    "list-egress-routes",
    "pipelock-block",
    "capability-block",
    "check-proposal",
    "withdraw-proposal",
}
ERAS = ("legacy", "modern")


def inspect(island: Island, clients: Clients, home: Path, *wish: str, era: str, token: str = "") -> Finished:
    return island.run(
        *(clients.node, clients.script("mcp-inspector"), "--cli"),
        *("--server-url", island.bottle.url, "--transport", "http", "--stored-auth-only"),
        *("--header", f"Authorization: Bearer {token or island.bottle.token}"),
        *("--protocol-era", era, "--format", "json", *wish),
        home=home,
    )


def result(finished: Finished) -> dict[str, Any]:
    assert finished.code == 0, finished.said
    found: dict[str, Any] = json.loads(finished.out)["result"]
    return found


@pytest.mark.parametrize("era", ERAS)
def test_it_lists_the_six_tools_with_portable_schemas(
    island: Island, clients: Clients, home: Path, era: str
) -> None:
    listed = result(inspect(island, clients, home, "--method", "tools/list", "--strict", era=era))
    assert {tool["name"] for tool in listed["tools"]} == TOOLS


@pytest.mark.parametrize("era", ERAS)
def test_it_calls_a_tool_that_answers_at_once(island: Island, clients: Clients, home: Path, era: str) -> None:
    wish = ("--method", "tools/call", "--tool-name", "list-egress-routes")
    called = result(inspect(island, clients, home, *wish, era=era))
    assert called["content"][0]["type"] == "text"
    assert not called.get("isError")


@pytest.mark.parametrize("era", ERAS)
def test_it_is_refused_with_a_wrong_token(island: Island, clients: Clients, home: Path, era: str) -> None:
    refused = inspect(island, clients, home, "--method", "tools/list", era=era, token="not-a-token")
    assert refused.code not in (0, None), refused.said
