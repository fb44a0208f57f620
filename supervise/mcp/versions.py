"""The MCP revisions: which are known, which fields each has, and the HTTP status of its errors.

Pure. Nothing here depends on the client.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from supervise.mcp.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    UNAVAILABLE,
    Json,
)

V2024_11_05: Final = "2024-11-05"
V2025_03_26: Final = "2025-03-26"
V2025_06_18: Final = "2025-06-18"
V2025_11_25: Final = "2025-11-25"
V2026_07_28: Final = "2026-07-28"

HANDSHAKE_VERSIONS: Final = (V2024_11_05, V2025_03_26, V2025_06_18, V2025_11_25)
MODERN_VERSIONS: Final = (V2026_07_28,)
VERSIONS: Final = HANDSHAKE_VERSIONS + MODERN_VERSIONS
NEWEST_HANDSHAKE: Final = HANDSHAKE_VERSIONS[-1]
NEWEST: Final = VERSIONS[-1]
ASSUMED_VERSION: Final = V2025_03_26  # of a handshake request without the header
# Results then include the fields of 2025-06-18: Gemini CLI speaks that version and sends no header, and
# clients that really are older ignore fields that they do not know.
SHAPE_WITHOUT_HEADER: Final = V2025_06_18
BATCH_VERSION: Final = V2025_03_26  # the only revision with batches

TASKS_EXTENSION: Final = "io.modelcontextprotocol/tasks"
SERVER_NAME: Final = "bot-bottle-supervise"
SERVER_TITLE: Final = "bot-bottle supervise"
LIST_TTL_MS: Final = 300_000  # the tool table changes only with a release

# Fields that older clients do not know, by the revision that added them.
TOOL_FIELDS_SINCE: Final[Mapping[str, str]] = {
    "annotations": V2025_03_26,
    "title": V2025_06_18,
    "outputSchema": V2025_06_18,
}
CALL_FIELDS_SINCE: Final[Mapping[str, str]] = {"structuredContent": V2025_06_18}
SERVER_INFO_FIELDS_SINCE: Final[Mapping[str, str]] = {"title": V2025_06_18}
PROGRESS_FIELDS_SINCE: Final[Mapping[str, str]] = {"message": V2025_03_26}


class Era(StrEnum):
    HANDSHAKE = "handshake"
    MODERN = "modern"


def era_of(protocol_version: str) -> Era:
    return Era.MODERN if protocol_version in MODERN_VERSIONS else Era.HANDSHAKE


def at_least(protocol_version: str, minimum: str) -> bool:
    """Compare by position: versions are an enumerated set, not an order of strings."""
    return VERSIONS.index(protocol_version) >= VERSIONS.index(minimum)


def reports_bad_input_as_result(protocol_version: str) -> bool:
    """From 2025-11-25 on, bad arguments are a result that the model sees; before, an error -32602 of the
    client.
    """
    return at_least(protocol_version, V2025_11_25)


def http_status(code: int, era: Era) -> int:
    """The HTTP status of a JSON-RPC error."""
    if code == UNAVAILABLE:
        return 503
    if era is Era.MODERN:
        return {METHOD_NOT_FOUND: 404, INTERNAL_ERROR: 500}.get(code, 400)
    return 400 if code in (PARSE_ERROR, INVALID_REQUEST) else 200


def server_info(protocol_version: str) -> Json:
    info = {"name": SERVER_NAME, "title": SERVER_TITLE, "version": _own_version()}
    return keep_known(info, SERVER_INFO_FIELDS_SINCE, protocol_version)


def keep_known(fields: Mapping[str, Any], since: Mapping[str, str], protocol_version: str) -> Json:
    """The fields without those that were added after `protocol_version`."""
    return {
        name: value
        for name, value in fields.items()
        if name not in since or at_least(protocol_version, since[name])
    }


def shape_result(method: str, result: Json, protocol_version: str) -> Json:
    """The result as `protocol_version` defines it."""
    if method == "tools/list":
        tools = [keep_known(tool, TOOL_FIELDS_SINCE, protocol_version) for tool in result["tools"]]
        result = {**result, "tools": tools}
    elif method == "tools/call":
        result = keep_known(result, CALL_FIELDS_SINCE, protocol_version)
    if era_of(protocol_version) is Era.HANDSHAKE:
        return result
    if method in ("tools/list", "server/discover"):
        # The same for every bottle, but only a bottle may read it.
        result = {**result, "ttlMs": LIST_TTL_MS, "cacheScope": "private"}
    meta = {**result.get("_meta", {}), "io.modelcontextprotocol/serverInfo": server_info(protocol_version)}
    return {"resultType": "complete", **result, "_meta": meta}


@cache
def _own_version() -> str:
    try:
        return version("bot-bottle")
    except PackageNotFoundError:  # run from a checkout, as usual
        return "0.1.0"
