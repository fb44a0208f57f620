"""Results in the shape of each revision, held against the published types."""

from __future__ import annotations

from typing import Any

import pytest
from mcp_types import methods

from supervise.mcp.versions import (
    HANDSHAKE_VERSIONS,
    NEWEST,
    VERSIONS,
    Era,
    at_least,
    http_status,
    server_info,
    shape_result,
)

TOOL = {
    "name": "t",
    "title": "T",
    "description": "does t",
    "inputSchema": {"type": "object"},
    "outputSchema": {"type": "object"},
    "annotations": {"readOnlyHint": True},
}
CALL = {
    "content": [{"type": "text", "text": "status: pending"}],
    "structuredContent": {"status": "pending"},
    "isError": False,
}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("method", "result"), [("tools/list", {"tools": [TOOL]}), ("tools/call", CALL)])
def test_every_versions_results_are_valid_by_its_schema(version: str, method: str, result: Any) -> None:
    methods.validate_server_result(method, version, shape_result(method, result, version))


@pytest.mark.parametrize(
    ("field", "since"),
    [("annotations", "2025-03-26"), ("title", "2025-06-18"), ("outputSchema", "2025-06-18")],
)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_tool_carries_only_fields_its_version_knows(version: str, field: str, since: str) -> None:
    tool = shape_result("tools/list", {"tools": [TOOL]}, version)["tools"][0]
    assert (field in tool) is at_least(version, since)
    assert tool["description"] == "does t"


@pytest.mark.parametrize("version", VERSIONS)
def test_structured_content_came_with_2025_06_18(version: str) -> None:
    assert ("structuredContent" in shape_result("tools/call", CALL, version)) is at_least(
        version, "2025-06-18"
    )


@pytest.mark.parametrize("version", HANDSHAKE_VERSIONS)
def test_a_handshake_result_has_no_modern_fields(version: str) -> None:
    for method, result in (("tools/list", {"tools": []}), ("ping", {})):
        assert not {"resultType", "ttlMs", "cacheScope", "_meta"} & set(shape_result(method, result, version))


def test_modern_results_say_their_type_and_who_answered() -> None:
    listed = shape_result("tools/list", {"tools": []}, NEWEST)
    assert (listed["resultType"], listed["cacheScope"]) == ("complete", "private")
    assert isinstance(listed["ttlMs"], int)
    assert listed["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == "bot-bottle-supervise"
    assert shape_result("tools/call", {"resultType": "task"}, NEWEST)["resultType"] == "task"
    assert "ttlMs" not in shape_result("tools/call", CALL, NEWEST)


def test_a_servers_title_came_with_2025_06_18() -> None:
    assert "title" not in server_info("2025-03-26")
    assert server_info("2025-06-18")["title"]


@pytest.mark.parametrize(
    ("code", "handshake", "modern"),
    [
        (-32700, 400, 400),
        (-32600, 400, 400),
        (-32601, 200, 404),
        (-32602, 200, 400),
        (-32603, 200, 500),
        (-32021, 200, 400),
    ],
)
def test_an_error_travels_with_its_eras_status(code: int, handshake: int, modern: int) -> None:
    assert http_status(code, Era.HANDSHAKE) == handshake
    assert http_status(code, Era.MODERN) == modern
