"""Tool calls that answer at once, and bad ones: every refusal clear, and nothing queued by it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from mcp_types import methods

from botbottle.models import Bottle
from supervise.mcp.versions import HANDSHAKE_VERSIONS, VERSIONS
from supervise.models import Proposal
from supervise.proposals.kind import kind_named
from tests.supervise.mcp.conftest import MODERN, TASKS, Agent, message, modern_message

pytestmark = pytest.mark.django_db
BAD_INPUT_AS_RESULT = ("2025-11-25", MODERN)
BAD_INPUT_AS_ERROR = ("2024-11-05", "2025-03-26", "2025-06-18")


# --- Bad input: clear, and nothing queued

JUSTIFIED = {"justification": "because"}
BAD_CALLS: list[tuple[str, dict[str, Any], str]] = [
    ("egress-block", {}, "justification"),
    ("egress-block", {"host": "api.example.com"}, "justification"),
    ("egress-block", {"host": "api.example.com", "justification": ""}, "justification"),
    ("egress-block", {"host": "api.example.com", "justification": " \n"}, "justification"),
    ("egress-block", {"host": "api.example.com", "justification": 5}, "justification"),
    ("egress-block", {"host": "api.example.com", "justification": ["x"]}, "justification"),
    ("egress-block", JUSTIFIED, "host"),
    ("egress-block", {"host": "", **JUSTIFIED}, "host"),
    ("egress-block", {"host": 7, **JUSTIFIED}, "host"),
    ("egress-block", {"host": "127.0.0.1", **JUSTIFIED}, "host"),
    ("egress-block", {"host": "169.254.169.254", **JUSTIFIED}, "host"),
    ("egress-block", {"host": "localhost", **JUSTIFIED}, "host"),
    ("egress-block", {"host": "*.com", **JUSTIFIED}, "host"),
    ("egress-block", {"host": "a b.example.com", **JUSTIFIED}, "host"),
    ("egress-block", {"host": "https://api.example.com/", **JUSTIFIED}, "host"),
    ("egress-block", {"host": "api.example.com", "path_allowlist": ["repos"], **JUSTIFIED}, "path_allowlist"),
    ("egress-block", {"host": "api.example.com", "path_allowlist": "/repos", **JUSTIFIED}, "path_allowlist"),
    ("egress-block", {"host": "api.example.com", "methods": "GET", **JUSTIFIED}, "methods"),
    ("egress-block", {"host": "api.example.com", "methods": ["G E T"], **JUSTIFIED}, "methods"),
    (
        "egress-block",
        {"host": "api.example.com", "auth": {"scheme": "Basic", "token_ref": "T"}, **JUSTIFIED},
        "auth",
    ),
    ("egress-block", {"host": "api.example.com", "auth": {"scheme": "Bearer"}, **JUSTIFIED}, "auth"),
    ("egress-block", {"host": "api.example.com", "auth": "Bearer x", **JUSTIFIED}, "auth"),
    (
        "egress-block",
        {"host": "api.example.com", "auth": {"scheme": "Bearer", "token_ref": "T", "x": 1}, **JUSTIFIED},
        "auth",
    ),
    ("egress-block", {"host": "api.example.com", "lease": {"ttl_seconds": 0}, **JUSTIFIED}, "lease"),
    ("egress-block", {"host": "api.example.com", "lease": {}, **JUSTIFIED}, "lease"),
    ("egress-block", {"host": "api.example.com", "slug": "agent-b", **JUSTIFIED}, "slug"),
    ("pipelock-block", {"failed_url": "https://api.example.com/x"}, "justification"),
    ("pipelock-block", JUSTIFIED, "failed_url"),
    ("pipelock-block", {"failed_url": "ftp://api.example.com", **JUSTIFIED}, "failed_url"),
    ("pipelock-block", {"failed_url": "https:///path", **JUSTIFIED}, "failed_url"),
    ("pipelock-block", {"failed_url": "api.example.com", **JUSTIFIED}, "failed_url"),
    ("capability-block", {"dockerfile": "FROM debian"}, "justification"),
    ("capability-block", JUSTIFIED, "dockerfile"),
    ("capability-block", {"dockerfile": " ", **JUSTIFIED}, "dockerfile"),
    ("capability-block", {"dockerfile": "this is no dockerfile", **JUSTIFIED}, "line 1"),
    ("capability-block", {"dockerfile": "FROM debian\nRUN echo \ud800", **JUSTIFIED}, "surrogates"),
    ("list-egress-routes", {"host": "x"}, "no arguments"),
    ("check-proposal", {}, "proposal_id"),
    ("check-proposal", {"proposal_id": 5}, "proposal_id"),
    ("check-proposal", {"proposal_id": "not-a-uuid"}, "no proposal"),
    ("check-proposal", {"proposal_id": "00000000-0000-4000-8000-000000000000"}, "no proposal"),
    ("check-proposal", {"proposal_id": "x\x00y"}, "no proposal"),
    ("withdraw-proposal", {}, "proposal_id"),
    ("withdraw-proposal", {"proposal_id": "not-a-uuid"}, "no proposal"),
]


@pytest.mark.parametrize(("tool", "arguments", "names"), BAD_CALLS)
def test_bad_input_queues_nothing_and_says_what_is_wrong(
    agent: Agent, tool: str, arguments: dict[str, Any], names: str
) -> None:
    for version in BAD_INPUT_AS_RESULT:  # the model reads it
        result = agent.tool(tool, arguments, version)["result"]
        assert result["isError"] is True
        assert names in result["content"][0]["text"]
        methods.validate_server_result("tools/call", version, result)
    for version in BAD_INPUT_AS_ERROR:  # its client reads it
        error = agent.tool(tool, arguments, version)["error"]
        assert error["code"] == -32602
        assert names in error["message"]
    assert not Proposal.objects.exists()


def test_a_refused_ask_says_that_nothing_was_queued(agent: Agent) -> None:
    text = agent.tool("egress-block", {"host": "localhost", **JUSTIFIED})["result"]["content"][0]["text"]
    assert text.endswith("Nothing was queued.")


@pytest.mark.parametrize(
    ("backend", "is_built_here"), [("docker", True), ("local", True), ("smolmachines", False)]
)
def test_a_dockerfile_that_could_never_be_built_is_refused_before_anybody_reads_it(
    agent: Agent, backend: str, is_built_here: bool
) -> None:
    Bottle.objects.update(manifest="image: x", backend=backend)
    text = "FROM debian:12\nADD https://example.com/x /x\n"
    answer = agent.ask_task("capability-block", dockerfile=text, **JUSTIFIED)
    assert Proposal.objects.exists() is not is_built_here
    if is_built_here:
        assert "line 2: a rebuild takes no ADD" in answer["content"][0]["text"]


def test_the_rules_for_dockerfiles_are_in_the_tools_description() -> None:
    for rule in ("ADD", "ONBUILD", "VOLUME", "heredocs", "base images that are not on the host"):
        assert rule in kind_named("capability-block").description


@pytest.mark.parametrize(
    "params",
    [
        {"name": "no-such-tool", "arguments": {}},
        {"name": 5},
        {"name": None},
        {},
        {"name": "egress-block", "arguments": []},
        {"name": "egress-block", "arguments": "x"},
    ],
)
def test_an_unknown_tool_or_arguments_that_are_no_object_are_invalid_params(
    agent: Agent, params: dict[str, Any]
) -> None:
    body, headers = modern_message("tools/call", params)
    headers = {key: value for key, value in headers.items() if isinstance(value, str)}
    response = agent.post(body, **headers)
    assert (response.status_code, response.json()["error"]["code"]) == (400, -32602)
    for version in HANDSHAKE_VERSIONS:
        response = agent.post(message("tools/call", params), **{"MCP-Protocol-Version": version})
        assert (response.status_code, response.json()["error"]["code"]) == (200, -32602)
    assert not Proposal.objects.exists()


# --- Immediate tools


@pytest.mark.parametrize("version", VERSIONS)
def test_list_egress_routes_answers_at_once(agent: Agent, version: str) -> None:
    result = agent.tool("list-egress-routes", version=version)["result"]
    listed = json.loads(result["content"][0]["text"])
    assert listed["routes"] == []
    assert result["isError"] is False
    assert result.get("structuredContent", listed) == listed


def test_check_proposal_tells_where_an_ask_stands(agent: Agent) -> None:
    task = agent.ask_task(host="api.example.com", justification="because")
    result = agent.tool("check-proposal", {"proposal_id": task["taskId"]})["result"]
    assert result["content"][0]["text"].startswith("status: pending\nnotes: ")
    assert result["structuredContent"] == {
        "status": "pending",
        "proposal_id": task["taskId"],
        "notes": "",
        "granted": None,
        "not_granted": None,
        "live_version": None,
    }
    assert result["isError"] is False


def test_another_bottles_proposal_does_not_exist(agent: Agent, other_agent: Agent) -> None:
    task = other_agent.ask_task(host="api.example.com", justification="because")
    for tool in ("check-proposal", "withdraw-proposal"):
        result = agent.tool(tool, {"proposal_id": task["taskId"]})["result"]
        assert result["isError"] is True
        assert "no proposal" in result["content"][0]["text"]
    assert Proposal.objects.get().status == "pending"


def test_withdraw_proposal_takes_it_back_once(agent: Agent) -> None:
    task = agent.ask_task(host="api.example.com", justification="because")
    result = agent.tool("withdraw-proposal", {"proposal_id": task["taskId"]})["result"]
    assert result["content"][0]["text"].startswith("status: withdrawn")
    assert result["isError"] is False
    again = agent.tool("withdraw-proposal", {"proposal_id": task["taskId"]})["result"]
    assert again["isError"] is True
    assert "check-proposal" in again["content"][0]["text"]


def test_a_bottle_with_too_many_open_asks_is_told_so(agent: Agent, settings: Any) -> None:
    settings.SUPERVISE_MAX_PENDING = 1
    agent.ask_task(host="a.example.com", justification="because")
    result = agent.tool("egress-block", {"host": "b.example.com", **JUSTIFIED})["result"]
    assert result["isError"] is True
    assert "withdraw-proposal" in result["content"][0]["text"]
    assert Proposal.objects.count() == 1


def test_tasks_capability_is_never_assumed(agent: Agent) -> None:
    """A bad ask stays a result even for a client that could take a task."""
    params = {"name": "egress-block", "arguments": {}}
    body, headers = modern_message("tools/call", params, capabilities=TASKS)
    result = agent.post(body, **headers).json()["result"]
    assert (result["resultType"], result["isError"]) == ("complete", True)
