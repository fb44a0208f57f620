"""Both eras of MCP over HTTP, row by row: how a POST is read, and with what code and status it is refused."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervise.mcp import protocol
from supervise.mcp.jsonrpc import ProtocolError
from supervise.mcp.protocol import META_CAPABILITIES, META_VERSION, McpRequest, parse
from supervise.mcp.versions import HANDSHAKE_VERSIONS, TASKS_EXTENSION, Era

MODERN = "2026-07-28"
META = {META_VERSION: MODERN, META_CAPABILITIES: {}}


def message(method: str = "tools/list", params: Any = None, **more: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": {} if params is None else params, **more}


def modern(method: str = "tools/list", **params: Any) -> dict[str, Any]:
    return message(method, {"_meta": META, **params})


def headers_for(method: str = "tools/list", **more: str) -> dict[str, str]:
    return {"mcp-protocol-version": MODERN, "mcp-method": method, **more}


def read(body: Any, headers: dict[str, str] | None = None) -> McpRequest:
    post = parse(json.dumps(body).encode(), headers or {})
    assert len(post.messages) == 1
    only = post.messages[0]
    assert isinstance(only, McpRequest)
    return only


def refusal(body: Any, headers: dict[str, str] | None = None) -> ProtocolError:
    with pytest.raises(ProtocolError) as caught:
        parse(json.dumps(body).encode(), headers or {})
    return caught.value


# --- Which era, which version


@pytest.mark.parametrize(
    ("body", "headers", "era", "version"),
    [
        (message(), {}, Era.HANDSHAKE, "2025-06-18"),
        *[(message(), {"mcp-protocol-version": v}, Era.HANDSHAKE, v) for v in HANDSHAKE_VERSIONS],
        (message(), {"mcp-protocol-version": " 2025-06-18 "}, Era.HANDSHAKE, "2025-06-18"),
        # the mirrored headers alone make no request modern
        (message(), {"mcp-method": "tools/list"}, Era.HANDSHAKE, "2025-06-18"),
        (modern(), headers_for(), Era.MODERN, MODERN),
        *[(message("initialize", {"protocolVersion": v}), {}, Era.HANDSHAKE, v) for v in HANDSHAKE_VERSIONS],
        (message("initialize", {"protocolVersion": "1999-01-01"}), {}, Era.HANDSHAKE, "2025-11-25"),
        (message("initialize", {"protocolVersion": MODERN}), {}, Era.HANDSHAKE, "2025-11-25"),
        (message("initialize"), {}, Era.HANDSHAKE, "2025-11-25"),
        # a handshake is a handshake whatever its version header says
        (
            message("initialize", {"protocolVersion": "2025-06-18"}),
            {"mcp-protocol-version": MODERN},
            Era.HANDSHAKE,
            "2025-06-18",
        ),
        (modern("initialize"), headers_for("initialize"), Era.MODERN, MODERN),
    ],
)
def test_it_knows_the_era_and_version(
    body: dict[str, Any], headers: dict[str, str], era: Era, version: str
) -> None:
    request = read(body, headers)
    assert (request.era, request.version) == (era, version)


@pytest.mark.parametrize("version", ["1999-01-01", "v999", "", "2025-03-26, 2025-06-18"])
def test_a_handshake_request_with_an_unsupported_version_header_is_refused(version: str) -> None:
    error = refusal(message(), {"mcp-protocol-version": version})
    assert (error.code, error.http_status, error.request_id) == (-32600, 400, 1)
    assert "2025-11-25" in error.message


def test_a_protocol_version_that_is_no_string_is_refused() -> None:
    error = refusal(message("initialize", {"protocolVersion": 5}))
    assert (error.code, error.http_status) == (-32602, 200)


# --- Modern: _meta and the headers


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"_meta": None},
        {"_meta": []},
        {"_meta": {META_CAPABILITIES: {}}},
        {"_meta": {META_VERSION: MODERN}},
        {"_meta": {META_VERSION: MODERN, META_CAPABILITIES: None}},
        {"_meta": {META_VERSION: MODERN, META_CAPABILITIES: []}},
        {"_meta": {META_VERSION: 5, META_CAPABILITIES: {}}},
        {"_meta": {META_VERSION: "", META_CAPABILITIES: {}}},
    ],
)
@pytest.mark.parametrize("method", ["server/discover", "tools/list"])
def test_a_modern_request_without_its_meta_is_refused(method: str, params: dict[str, Any]) -> None:
    error = refusal(message(method, params), headers_for(method))
    assert (error.code, error.http_status, error.request_id, error.modern) == (-32602, 400, 1, True)
    assert "_meta" in error.message


@pytest.mark.parametrize(
    ("body", "headers", "names"),
    [
        (modern(), {"mcp-method": "tools/list"}, "MCP-Protocol-Version"),
        (modern(), {**headers_for(), "mcp-protocol-version": "2025-11-25"}, "MCP-Protocol-Version"),
        (
            message("tools/list", {"_meta": {**META, META_VERSION: "v999.0.0"}}),
            headers_for(),
            "MCP-Protocol-Version",
        ),
        (modern(), {"mcp-protocol-version": MODERN}, "Mcp-Method"),
        (modern(), headers_for("prompts/list"), "Mcp-Method"),
        (modern(), headers_for("TOOLS/LIST"), "Mcp-Method"),
        (modern(), headers_for("tools/list, tools/list"), "Mcp-Method"),
        (modern(), headers_for("=?base64?!!!?="), "Mcp-Method"),
        (modern(), headers_for("=?base64?/w==?="), "Mcp-Method"),
        (modern(), headers_for("tööls/list"), "Mcp-Method"),
        (modern("tools/call", name="egress-block"), headers_for("tools/call"), "Mcp-Name"),
        (
            modern("tools/call", name="egress-block"),
            headers_for("tools/call", **{"mcp-name": "other"}),
            "Mcp-Name",
        ),
        (
            modern("tasks/get", taskId="a"),
            headers_for("tasks/get", **{"mcp-name": "b"}),
            "Mcp-Name",
        ),
        (modern("tasks/cancel", taskId="a"), headers_for("tasks/cancel"), "Mcp-Name"),
        (modern("tasks/update", taskId="a"), headers_for("tasks/update"), "Mcp-Name"),
        (modern("resources/read", uri="a:b"), headers_for("resources/read"), "Mcp-Name"),
        (modern("prompts/get", name="a"), headers_for("prompts/get"), "Mcp-Name"),
    ],
)
def test_headers_that_do_not_repeat_the_body_are_refused(
    body: dict[str, Any], headers: dict[str, str], names: str
) -> None:
    error = refusal(body, headers)
    assert (error.code, error.http_status, error.request_id) == (-32020, 400, 1)
    assert names in error.message


def encoded(text: str) -> str:
    return f"=?base64?{base64.b64encode(text.encode()).decode()}?="


@pytest.mark.parametrize(
    ("name", "header"),
    [
        ("egress-block", "egress-block"),
        ("egress-block", "  egress-block\t"),
        ("egress-block", encoded("egress-block")),
        ("hällo 世界", encoded("hällo 世界")),
        ("=?base64?literal?=", encoded("=?base64?literal?=")),
    ],
)
def test_a_mirrored_header_may_be_padded_or_base64(name: str, header: str) -> None:
    request = read(modern("tools/call", name=name), headers_for("tools/call", **{"mcp-name": header}))
    assert request.params["name"] == name


@pytest.mark.parametrize("version", ["v999.0.0", "2025-11-25", "2024-11-05"])
def test_an_unsupported_modern_version_is_refused_with_those_supported(version: str) -> None:
    body = message("server/discover", {"_meta": {**META, META_VERSION: version}})
    error = refusal(body, {"mcp-protocol-version": version, "mcp-method": "server/discover"})
    assert (error.code, error.http_status) == (-32022, 400)
    assert error.data == {"supported": [MODERN], "requested": version}


@pytest.mark.parametrize(
    ("capabilities", "declared"),
    [
        ({}, False),
        ({"tasks": {}}, False),
        ({"extensions": []}, False),
        ({"extensions": {TASKS_EXTENSION: None}}, False),
        ({"extensions": {TASKS_EXTENSION: {}}}, True),
    ],
)
def test_tasks_are_declared_per_request(capabilities: dict[str, Any], declared: bool) -> None:
    body = message("tools/list", {"_meta": {**META, META_CAPABILITIES: capabilities}})
    assert read(body, headers_for()).declares_tasks is declared


def test_a_handshake_request_cannot_declare_tasks() -> None:
    capabilities = {META_CAPABILITIES: {"extensions": {TASKS_EXTENSION: {}}}}
    assert not read(message("tools/call", {"_meta": capabilities})).declares_tasks


# --- Progress tokens


@pytest.mark.parametrize("token", ["abc", "", 0, 7, 1.5])
def test_it_keeps_the_progress_token(token: str | float) -> None:
    assert read(message("tools/call", {"_meta": {"progressToken": token}})).progress_token == token
    body = message("tools/list", {"_meta": {**META, "progressToken": token}})
    assert read(body, headers_for()).progress_token == token


@pytest.mark.parametrize("token", [True, [], {}])
def test_it_refuses_a_progress_token_of_another_type(token: object) -> None:
    error = refusal(message("tools/call", {"_meta": {"progressToken": token}}))
    assert (error.code, error.http_status) == (-32602, 200)
    body = message("tools/list", {"_meta": {**META, "progressToken": token}})
    assert refusal(body, headers_for()).http_status == 400


# --- Notifications and answers


def test_a_notification_is_read_in_both_eras() -> None:
    note = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
    assert read(note).is_notification
    assert read(note, headers_for("notifications/cancelled")).era is Era.MODERN
    assert refusal(note, headers_for("other")).code == -32020


def test_a_handshake_clients_answer_needs_none_and_a_modern_ones_is_refused() -> None:
    answer = {"jsonrpc": "2.0", "id": 1, "result": {}}
    assert parse(json.dumps(answer).encode(), {}).messages == ()
    error = refusal(answer, {"mcp-protocol-version": MODERN})
    assert (error.code, error.http_status) == (-32600, 400)


@pytest.mark.parametrize(("version", "status"), [("2025-06-18", 200), (MODERN, 400)])
def test_params_that_are_no_object_are_refused_with_the_eras_status(version: str, status: int) -> None:
    error = refusal(message(params=[1]), {"mcp-protocol-version": version})
    assert (error.code, error.http_status, error.request_id) == (-32602, status, 1)


# --- Batches


@pytest.mark.parametrize("version", [v for v in HANDSHAKE_VERSIONS if v != "2025-03-26"] + [MODERN])
def test_a_batch_in_another_version_is_refused(version: str) -> None:
    error = refusal([message()], {"mcp-protocol-version": version})
    assert (error.code, error.http_status) == (-32600, 400)
    assert "2025-03-26" in error.message


@pytest.mark.parametrize("headers", [{}, {"mcp-protocol-version": "2025-03-26"}])
def test_a_batch_reads_each_message_for_itself(headers: dict[str, str]) -> None:
    batch = [
        message("ping"),
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 9, "result": {}},
        {"jsonrpc": "1.0", "id": 2, "method": "ping"},
        message("initialize", {"protocolVersion": "2025-03-26"}, id=3),
        {**modern("tools/list"), "id": 4},
    ]
    post = parse(json.dumps(batch).encode(), headers)
    assert post.is_batch
    kinds = [(m.code, m.request_id) if isinstance(m, ProtocolError) else m.method for m in post.messages]
    assert kinds[:4] == ["ping", "notifications/initialized", (-32600, 2), (-32600, 3)]
    assert isinstance(post.messages[4], ProtocolError)
    assert post.messages[4].request_id == 4


@pytest.mark.parametrize("batch", [[], [message()] * (protocol.MAX_BATCH + 1)])
def test_an_empty_or_endless_batch_is_refused(batch: list[Any]) -> None:
    assert refusal(batch).code == -32600


@given(
    st.binary(max_size=300),
    st.dictionaries(st.sampled_from(["mcp-protocol-version", "mcp-method"]), st.text()),
)
def test_any_post_is_read_or_refused_with_a_known_code(body: bytes, headers: dict[str, str]) -> None:
    try:
        parse(body, headers)
    except ProtocolError as error:
        assert error.code in (-32700, -32600, -32602, -32020, -32022)
        assert error.http_status in (200, 400)
