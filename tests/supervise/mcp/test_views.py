"""The endpoint itself: who may ask, what a POST may be, both eras, faults and the log."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from django.test import Client
from mcp_types import methods

from botbottle.models import Bottle
from supervise.mcp import catalog, dispatch
from supervise.mcp.versions import HANDSHAKE_VERSIONS, VERSIONS
from supervise.models import Proposal
from tests.supervise.mcp.conftest import MODERN, Agent, ask, message, modern_message

pytestmark = pytest.mark.django_db


def test_a_bottle_without_a_supervisor_is_told_so_and_files_nothing(agent: Agent) -> None:
    Bottle.objects.update(supervise=False)
    refused = agent.post(ask())
    assert refused.status_code == 403
    assert "supervise: false" in refused.content.decode()
    assert not Proposal.objects.exists()


# --- Start


@pytest.mark.parametrize("version", HANDSHAKE_VERSIONS)
def test_initialize_announces_the_server(agent: Agent, version: str) -> None:
    answer = agent.post(message("initialize", {"protocolVersion": version, "capabilities": {}})).json()
    result = answer["result"]
    assert result["protocolVersion"] == version
    assert result["serverInfo"]["name"] == "bot-bottle-supervise"
    assert result["capabilities"] == {"tools": {"listChanged": False}}
    assert "check-proposal" in result["instructions"]
    methods.validate_server_result("initialize", version, result)


def test_discover_announces_the_server(agent: Agent) -> None:
    result = agent.call("server/discover", version=MODERN)["result"]
    assert result["supportedVersions"] == [MODERN]
    assert result["capabilities"] == {
        "tools": {"listChanged": False},
        "extensions": {"io.modelcontextprotocol/tasks": {}},
    }
    assert result["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == "bot-bottle-supervise"
    methods.validate_server_result("server/discover", MODERN, result)


@pytest.mark.parametrize("path", ["/", "/mcp", "/mcp/"])
def test_both_paths_serve(agent: Agent, path: str) -> None:
    response = agent.post(message("ping"), path=path)
    assert response.json() == {"jsonrpc": "2.0", "id": 1, "result": {}}
    assert response.headers["Content-Length"] == str(len(response.content))


@pytest.mark.parametrize(
    "method", ["unknown/method", "server/discoverx", "prompts/list", "resources/list", "tasks/get"]
)
def test_an_unknown_method_is_an_error_over_200_in_the_handshake_era(agent: Agent, method: str) -> None:
    for version in HANDSHAKE_VERSIONS:
        response = agent.post(message(method), **{"MCP-Protocol-Version": version})
        assert response.status_code == 200
        assert response.json()["error"]["code"] == -32601


@pytest.mark.parametrize(
    "method",
    [
        "initialize",
        "ping",
        "logging/setLevel",
        "prompts/list",
        "subscriptions/listen",
        "tasks/list",
        "tasks/result",
    ],
)
def test_an_unknown_method_is_404_in_the_modern_era(agent: Agent, method: str) -> None:
    body, headers = modern_message(method, request_id="x")
    response = agent.post(body, **headers)
    assert response.status_code == 404
    assert response.json()["error"]["code"] == -32601
    assert response.json()["id"] == "x"


@pytest.mark.parametrize(
    "method", ["notifications/initialized", "notifications/cancelled", "notifications/other"]
)
def test_a_notification_gets_202_and_no_body(agent: Agent, method: str) -> None:
    note = {"jsonrpc": "2.0", "method": method, "params": {"requestId": 5}}
    for headers in ({}, {"MCP-Protocol-Version": MODERN, "Mcp-Method": method}):
        response = agent.post(note, **headers)
        assert (response.status_code, response.content) == (202, b"")


def test_a_call_without_an_id_is_a_notification_and_queues_nothing(agent: Agent) -> None:
    call = {key: value for key, value in ask().items() if key != "id"}
    assert agent.post(call).status_code == 202
    assert not Proposal.objects.exists()


def test_a_clients_answer_gets_202(agent: Agent) -> None:
    assert agent.post({"jsonrpc": "2.0", "id": 1, "result": {}}).status_code == 202


# --- The tool table


@pytest.mark.parametrize("version", VERSIONS)
def test_the_list_names_every_tool_in_one_order(agent: Agent, version: str) -> None:
    result = agent.call("tools/list", version=version)["result"]
    assert [tool["name"] for tool in result["tools"]] == [
        "egress-block",
        "list-egress-routes",
        "pipelock-block",
        "capability-block",
        "check-proposal",
        "withdraw-proposal",
    ]
    methods.validate_server_result("tools/list", version, result)
    assert agent.call("tools/list", version=version)["result"] == result


def test_the_list_is_made_and_encoded_once_for_each_version(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    as_json = catalog.Tool.as_json
    monkeypatch.setattr(catalog.Tool, "as_json", lambda tool: made.append(tool.name) or as_json(tool))
    dispatch._tool_list.cache_clear()
    answers = {version: agent.call("tools/list", version=version) for version in [*VERSIONS, *VERSIONS]}
    assert len(made) == len(VERSIONS) * len(catalog.tools())
    assert len({str(answer["result"]) for answer in answers.values()}) > 1, "each version has its own shape"


@pytest.mark.parametrize("tool", catalog.tools(), ids=lambda tool: tool.name)
def test_a_description_tells_the_agent_what_to_do_next(tool: catalog.Tool) -> None:
    if tool.kind is not None:
        for word in ("waits", "approved", "modified", "rejected", "pending", "check-proposal"):
            assert word in tool.description
        assert "justification" in tool.required
    else:
        assert "at once" in tool.description.lower()


def test_the_list_has_one_page(agent: Agent) -> None:
    assert agent.call("tools/list", {"cursor": "x"})["error"]["code"] == -32602


# --- Who asks


def test_no_token_is_401(agent: Agent) -> None:
    response = Client(plane="agent").post(
        "/mcp", b"{}", content_type="application/json", headers={"Host": "localhost"}
    )
    assert response.status_code == 401
    assert response.headers["WWW-Authenticate"].startswith("Bearer")
    assert "Bearer" in response.json()["error"]["message"]


@pytest.mark.parametrize("authorization", ["", "Bearer", "Bearer wrong", "Basic YTpi", "Bearer \udcff"])
def test_a_wrong_token_is_401(agent: Agent, authorization: str) -> None:
    agent.defaults = {"Authorization": authorization.encode("utf-8", "replace").decode()}
    assert agent.post(message("ping")).status_code == 401


def test_a_deleted_bottles_token_is_401(agent: Agent) -> None:
    Bottle.objects.filter(pk=agent.bottle.pk).update(state=Bottle.State.DELETED)
    assert agent.post(message("ping")).status_code == 401


def test_a_header_cannot_name_another_bottle(agent: Agent, other_agent: Agent) -> None:
    task = other_agent.ask_task(host="api.example.com", justification="mine")
    agent.defaults = {"X-Bottle-Identity": other_agent.bottle.slug}
    assert agent.tool("check-proposal", {"proposal_id": task["taskId"]})["result"]["isError"]


@pytest.mark.parametrize(("slug", "status"), [("agent-a", 200), ("agent-x", 401), ("", 401)])
def test_on_the_relay_the_socket_says_who_asks(agent: Agent, slug: str, status: int) -> None:
    headers = {"Host": "supervise", "X-Bottle-Identity": slug, "Accept": "application/json"}
    body = json.dumps(message("ping"))
    response = Client(plane="relay").post("/", body, content_type="application/json", headers=headers)
    assert response.status_code == status


# --- HTTP limits


def test_a_body_over_1_mib_is_413(agent: Agent) -> None:
    body = json.dumps(ask(justification="x" * 2**20)).encode()
    response = agent.post(body)
    assert response.status_code == 413
    assert "1048576 bytes" in response.json()["error"]["message"]
    assert not Proposal.objects.exists()


def test_a_body_of_exactly_1_mib_is_read(agent: Agent) -> None:
    body = json.dumps(message("ping")).encode().ljust(2**20)
    assert agent.post(body).status_code == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Content-Length": "ten"}, 400),
        ({"Content-Length": ""}, 400),
        ({"Content-Type": "text/plain"}, 415),
        ({"Accept": "text/html"}, 406),
        ({"Host": "evil.example.com"}, 403),
        ({"Origin": "http://evil.example.com"}, 403),
        ({"Origin": "null"}, 403),
        ({"MCP-Protocol-Version": "1999-01-01"}, 400),
    ],
)
def test_a_request_that_breaks_the_rules_is_refused_with_a_reason(
    agent: Agent, headers: dict[str, str], status: int
) -> None:
    response = agent.post(ask(), **headers)
    assert response.status_code == status
    assert response.json()["error"]["message"]
    assert not Proposal.objects.exists()


@pytest.mark.parametrize("method", ["get", "delete", "put", "patch", "options", "head"])
@pytest.mark.parametrize("path", ["/", "/mcp"])
def test_only_post_is_allowed(db: None, method: str, path: str) -> None:
    response = getattr(Client(plane="agent"), method)(path, headers={"Accept": "text/event-stream"})
    assert response.status_code == 405
    assert response.headers["Allow"] == "POST"


def test_a_client_that_reads_only_events_gets_one(agent: Agent) -> None:
    response = agent.post(message("ping"), Accept="text/event-stream")
    assert response.headers["Content-Type"] == "text/event-stream"
    assert response.content == b'event: message\ndata: {"jsonrpc":"2.0","id":1,"result":{}}\n\n'


# --- Bodies


@pytest.mark.parametrize(
    ("body", "code", "status"),
    [
        (b" ", -32700, 400),
        (b"{", -32700, 400),
        (b"\xff\xfe", -32700, 400),
        (b"[]", -32600, 400),
        (b'"text"', -32600, 400),
        (b'{"jsonrpc": "1.0", "id": 1, "method": "ping"}', -32600, 400),
        (b'{"jsonrpc": "2.0", "id": null, "method": "ping"}', -32600, 400),
        (b'{"jsonrpc": "2.0", "id": 1.5, "method": "ping"}', -32600, 400),
        (b'{"jsonrpc": "2.0", "id": true, "method": "ping"}', -32600, 400),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": [1]}', -32602, 200),
    ],
)
def test_a_body_that_is_no_message_is_refused(agent: Agent, body: bytes, code: int, status: int) -> None:
    response = agent.post(body)
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)


def test_a_batch_is_answered_message_by_message(agent: Agent) -> None:
    batch = [
        message("ping", request_id=1),
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        message("nothing", request_id=2),
        {"jsonrpc": "2.0", "id": False},
    ]
    answers = agent.post(batch).json()
    assert [(a["id"], a.get("error", {}).get("code")) for a in answers] == [
        (1, None),
        (2, -32601),
        (None, -32600),
    ]


def test_a_batch_of_notifications_gets_202(agent: Agent) -> None:
    assert agent.post([{"jsonrpc": "2.0", "method": "notifications/initialized"}]).status_code == 202


def test_a_batch_is_refused_in_later_versions(agent: Agent) -> None:
    response = agent.post([ask()], **{"MCP-Protocol-Version": "2025-06-18"})
    assert (response.status_code, response.json()["error"]["code"]) == (400, -32600)
    assert not Proposal.objects.exists()


# --- Faults and logs


def test_an_internal_fault_tells_the_agent_nothing(
    agent: Agent, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*args: object) -> None:
        raise RuntimeError("password=hunter2")

    monkeypatch.setattr("supervise.proposals.queries.live_routes", broken)
    for version, status in (("2025-11-25", 200), (MODERN, 500)):
        body, headers = (
            message("tools/call", {"name": "list-egress-routes"}, 7),
            {"MCP-Protocol-Version": version},
        )
        if version == MODERN:
            body, headers = modern_message("tools/call", {"name": "list-egress-routes"}, 7)
        response = agent.post(body, **headers)
        assert response.status_code == status
        assert response.json() == {
            "jsonrpc": "2.0",
            "id": 7,
            "error": {"code": -32603, "message": "Internal error."},
        }
    assert "hunter2" in caplog.text


def test_a_fault_before_any_method_is_a_500_without_detail(
    agent: Agent, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*args: object) -> None:
        raise RuntimeError("password=hunter2")

    monkeypatch.setattr("supervise.mcp.views.parse", broken)
    response = agent.post(message("ping"))
    assert response.status_code == 500
    assert b"hunter2" not in response.content


@pytest.fixture
def access_lines(caplog: pytest.LogCaptureFixture) -> Any:
    logger = logging.getLogger("supervise.access")
    logger.addHandler(caplog.handler)
    yield lambda: [record.getMessage() for record in caplog.records if record.name == "supervise.access"]
    logger.removeHandler(caplog.handler)


def test_every_request_is_one_line_of_json(agent: Agent, access_lines: Any) -> None:
    agent.tool("list-egress-routes")
    Client(plane="agent").get("/health")
    Client(plane="agent").get("/nothing")
    agent.post(b"{", Host="evil.example.com")
    lines = [json.loads(line) for line in access_lines()]
    assert [(line["method"], line["path"], line["status"]) for line in lines] == [
        ("POST", "/mcp", 200),
        ("GET", "/health", 200),
        ("GET", "/nothing", 404),
        ("POST", "/mcp", 403),
    ]
    assert (lines[0]["bottle"], lines[0]["mcp"], lines[0]["tool"]) == (
        "agent-a",
        "tools/call",
        "list-egress-routes",
    )
    assert lines[0]["ms"] >= 0


def test_a_batch_is_one_line_too(agent: Agent, access_lines: Any) -> None:
    agent.post([message("ping"), message("ping")])
    (line,) = map(json.loads, access_lines())
    assert line["mcp"] == "batch of 2"


def test_hostile_names_are_inert_in_the_log(agent: Agent, access_lines: Any) -> None:
    agent.post(message("\x1b[2J\n\u202e" + "x" * 5000))
    agent.post(message("tools/call", {"name": '\r\n{"forged": 1}\x00\ud800'}))
    first, second = access_lines()
    for line in (first, second):
        assert line.isascii()
        assert line.isprintable()
    assert len(first) < 1000
    assert json.loads(second)["tool"] == '\r\n{"forged": 1}\x00\ud800'


def test_an_unknown_name_is_echoed_escaped_and_short(agent: Agent) -> None:
    for method, params in (
        ("\x1b[2J\u202e" + "x" * 500, {}),
        ("tools/call", {"name": "\x1b\u202e" + "y" * 500}),
    ):
        text = agent.call(method, params)["error"]["message"]
        assert text.isascii()
        assert text.isprintable()
        assert len(text) < 300


# --- Health, and everything else


def test_health_answers_without_a_token(db: None) -> None:
    client = Client(plane="agent")
    assert client.get("/health").content == b"ok"
    assert client.get("/healthz").json() == {"ok": True}
    for path in ("/health", "/healthz"):
        response = client.post(path)
        assert (response.status_code, response.headers["Allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize("path", ["/admin/", "/api/", "/static/x", "/mcp/x", "/health/", "/not-found"])
def test_the_console_does_not_exist_on_the_agent_plane(db: None, path: str) -> None:
    response = Client(plane="agent").get(path)
    assert response.status_code == 404
    assert "POST /mcp" in response.json()["error"]
