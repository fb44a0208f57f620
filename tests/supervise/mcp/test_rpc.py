"""`POST /rpc`: the same dispatch without the envelope, with an HTTP status for every error."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from supervise.mcp import catalog
from supervise.models import Proposal
from supervise.proposals.waiting import WaiterHub
from tests.supervise.mcp.conftest import WAITING_CLIENT, Agent, decide, only_proposal, read_all, someone_waits

pytestmark = pytest.mark.django_db


def call(agent: Agent, method: str, params: Any = None, **headers: str) -> Any:
    body = {"method": method} if params is None else {"method": method, "params": params}
    return agent.post(body, path="/rpc", **headers)


def test_it_serves_what_mcp_serves(agent: Agent) -> None:
    listed = call(agent, "tools/list").json()
    assert listed == {"result": agent.call("tools/list")["result"]}
    routes = call(agent, "tools/call", {"name": "list-egress-routes"}).json()
    assert routes == {"result": agent.tool("list-egress-routes")["result"]}
    assert call(agent, "ping").json() == {"result": {}}


def test_it_serves_the_session_context(agent: Agent) -> None:
    assert call(agent, "session/context").json()["result"]["depth"] == "standard"
    asked = call(agent, "session/context", {"depth": "minimal", "format": "text", "session_id": "s1"})
    assert asked.json()["result"]["text"].startswith(
        "# bot-bottle: session context of bottle agent-a, minimal"
    )


@pytest.mark.parametrize(
    ("method", "params", "status", "code"),
    [
        ("nothing", {}, 404, -32601),
        ("tasks/get", {}, 404, -32601),
        ("x" * 100_000, {}, 404, -32601),
        ("tools/call", {}, 400, -32602),
        ("tools/call", {"name": "no-such-tool"}, 400, -32602),
        ("tools/call", {"name": {"a": 1}}, 400, -32602),
        ("tools/call", {"name": "check-proposal", "arguments": []}, 400, -32602),
        ("session/context", {"depth": 3}, 400, -32602),
        ("session/context", {"depth": {"deep": True}}, 400, -32602),
        ("session/context", {"format": "html"}, 400, -32602),
        ("session/context", {"session_id": ["a"]}, 400, -32602),
        ("session/context", {"session_id": True}, 400, -32602),
        ("session/context", {"session_id": "x" * 500_000}, 400, -32602),
        ("session/context", {"session_id": "a\ud800"}, 400, -32602),
    ],
    ids=str,
)
def test_an_error_has_its_status_and_a_short_sentence(
    agent: Agent, method: str, params: Any, status: int, code: int
) -> None:
    response = call(agent, method, params)
    assert (response.status_code, set(response.json())) == (status, {"error"})
    assert response.json()["error"]["code"] == code
    assert response.json()["error"]["message"].endswith(".")
    assert len(response.content) < 400


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b" ", -32700),
        (b"{", -32700),
        (b'{"method": "ping"', -32700),
        (b"\xff", -32700),
        (b"[" * 100_000, -32700),
        (b'{"method": "ping", "method": "ping"}', -32700),
        (b'{"method": "ping", "params": {"a": NaN}}', -32700),
        (b"[]", -32600),
        (b'"ping"', -32600),
        (b"null", -32600),
        (b"{}", -32600),
        (b'{"method": 1}', -32600),
        (b'{"method": ""}', -32600),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}', -32600),
        (b'{"method": "ping", "params": []}', -32602),
        (b'{"method": "ping", "params": 0}', -32602),
    ],
)
def test_a_body_that_is_no_call_is_400(agent: Agent, body: bytes, code: int) -> None:
    response = agent.post(body, path="/rpc")
    assert (response.status_code, response.json()["error"]["code"]) == (400, code)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Content-Length": "ten"}, 400),
        ({"Content-Length": ""}, 400),
        ({"Content-Length": str(2**20 + 1)}, 413),
        ({"Content-Type": "text/plain"}, 415),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Host": "evil.example.com"}, 403),
        ({"Origin": "http://evil.example.com"}, 403),
    ],
)
def test_a_request_that_breaks_the_rules_is_refused(
    agent: Agent, headers: dict[str, str], status: int
) -> None:
    response = call(agent, "ping", **headers)
    assert (response.status_code, set(response.json())) == (status, {"error"})


def test_a_body_over_1_mib_is_413(agent: Agent) -> None:
    response = call(agent, "ping", {"x": "y" * 2**20})
    assert response.status_code == 413
    assert "1048576 bytes" in response.json()["error"]["message"]


@pytest.mark.parametrize("method", ["get", "head", "put", "delete", "patch", "options"])
def test_only_post_is_allowed(db: None, method: str) -> None:
    response = getattr(Client(plane="agent"), method)("/rpc")
    assert (response.status_code, response.headers["Allow"]) == (405, "POST")


@pytest.mark.parametrize(
    "path", ["/rpc/", "/rpcx", "/session-context/", "/memory", "/memory/", "/memory/rpc"]
)
def test_there_is_nothing_beside_it(agent: Agent, path: str) -> None:
    assert agent.post({"method": "ping"}, path=path).status_code == 404


def test_bad_arguments_of_a_tool_are_a_result_and_queue_nothing(agent: Agent) -> None:
    asked = {"name": "egress-block", "arguments": {"host": "127.0.0.1", "justification": "x"}}
    result = call(agent, "tools/call", asked).json()["result"]
    assert result["isError"]
    assert not Proposal.objects.exists()


def test_a_fault_is_a_500_without_detail(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object) -> None:
        raise RuntimeError("password=hunter2")

    monkeypatch.setattr("supervise.proposals.queries.live_routes", broken)
    response = call(agent, "tools/call", {"name": catalog.LIST_ROUTES.name})
    assert response.status_code == 500
    assert response.json() == {"error": {"code": -32603, "message": "Internal error."}}


def test_every_call_is_one_line_of_json(agent: Agent, caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("supervise.access")
    logger.addHandler(caplog.handler)
    try:
        call(agent, "tools/call", {"name": "list-egress-routes"})
        call(agent, "\x1b[2J\n\u202e" + "x" * 5000)
        Client(plane="agent").get("/session-context?session_id=s1", headers=agent.headers())
    finally:
        logger.removeHandler(caplog.handler)
    raw = [record.getMessage() for record in caplog.records if record.name == "supervise.access"]
    assert all(line.isascii() and line.isprintable() and len(line) < 1000 for line in raw)
    lines = [json.loads(line) for line in raw]
    assert [(line["path"], line["status"], line["bottle"]) for line in lines] == [
        ("/rpc", 200, "agent-a"),
        ("/rpc", 404, "agent-a"),
        ("/session-context", 200, "agent-a"),
    ]
    assert (lines[0]["mcp"], lines[0]["tool"]) == ("tools/call", "list-egress-routes")
    assert lines[2]["mcp"] == "session/context"


# --- Waiting


ASK = {
    "method": "tools/call",
    "params": {"name": "egress-block", "arguments": {"host": "api.example.com", "justification": "tests"}},
}


async def waiting(agent: Agent) -> Any:
    return await WAITING_CLIENT.post(
        "/rpc", json.dumps(ASK), content_type="application/json", headers=agent.headers()
    )


@pytest.mark.django_db(transaction=True)
async def test_a_call_waits_for_the_operator(agent: Agent, operator: User, waiting_hub: WaiterHub) -> None:
    response = await waiting(agent)
    assert response.headers["Content-Type"] == "application/json"
    reading = asyncio.create_task(read_all(response))
    await someone_waits(waiting_hub)
    await decide(operator, await only_proposal())
    body = json.loads(await reading)
    assert set(body) == {"result"}
    assert body["result"]["structuredContent"]["status"] == "approved"


@pytest.mark.django_db(transaction=True)
async def test_a_client_that_leaves_loses_only_its_wait(agent: Agent, waiting_hub: WaiterHub) -> None:
    response = await waiting(agent)
    reading = asyncio.create_task(read_all(response))
    await someone_waits(waiting_hub)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    await response.streaming_content.aclose()
    assert (await only_proposal()).is_pending


@pytest.mark.django_db(transaction=True)
async def test_nobody_deciding_is_pending(agent: Agent, waiting_hub: WaiterHub, settings: Any) -> None:
    settings.SUPERVISE_RESPONSE_TIMEOUT_SECONDS = 0.05
    body = json.loads(await read_all(await waiting(agent)))
    assert body["result"]["structuredContent"]["status"] == "pending"
