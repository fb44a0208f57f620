"""The MCP Inspector's command line against a running bottle endpoint, in both protocol eras."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.isolated_clients import Clients, Finished, Island
from tests.support.timeouts import PATIENCE, wait_until

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


def test_it_calls_a_tool_that_answers_at_once(island: Island, clients: Clients, home: Path) -> None:
    wish = ("--method", "tools/call", "--tool-name", "list-egress-routes")
    called = result(inspect(island, clients, home, *wish, era="modern"))
    assert called["content"][0]["type"] == "text"
    assert not called.get("isError")


@pytest.mark.parametrize("era", ERAS)
def test_its_call_waits_until_the_operator_decides(
    island: Island, clients: Clients, home: Path, era: str
) -> None:
    """In the modern era it declares the tasks extension: its call becomes a task, and it asks for that."""
    ask = {"host": f"{era}.example.com", "justification": "the build fetches its packages there"}
    wish = ("--method", "tools/call", "--tool-name", "egress-block", "--tool-args-json", json.dumps(ask))
    before = len(island.requests())
    with ThreadPoolExecutor(1) as beside:
        waiting = beside.submit(inspect, island, clients, home, *wish, era=era)
        (proposal,) = wait_until(island.pending, what="the proposal")
        island.manage("proposals", "approve", proposal, "--note", "fine with me")
        called = result(waiting.result(timeout=2 * PATIENCE))
    assert called["structuredContent"]["status"] == "approved"
    assert "fine with me" in called["content"][0]["text"]
    asked = {request.get("mcp") for request in island.requests()[before:]}
    assert ("tasks/get" in asked) == (era == "modern")


def test_it_is_refused_with_a_wrong_token(island: Island, clients: Clients, home: Path) -> None:
    refused = inspect(island, clients, home, "--method", "tools/list", era="legacy", token="not-a-token")
    assert refused.code not in (0, None), refused.said
