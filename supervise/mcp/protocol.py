"""MCP over Streamable HTTP, both eras: turns a POST into checked requests, or a ProtocolError.

Pure: no Django, no sockets. Bodies and headers are an agent's claims; its identity is checked elsewhere.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from supervise.mcp import jsonrpc
from supervise.mcp.jsonrpc import Envelope, ProtocolError, RequestId
from supervise.mcp.versions import (
    ASSUMED_VERSION,
    BATCH_VERSION,
    HANDSHAKE_VERSIONS,
    MODERN_VERSIONS,
    NEWEST_HANDSHAKE,
    SHAPE_WITHOUT_HEADER,
    TASKS_EXTENSION,
    Era,
    http_status,
)

MAX_BATCH = 50
META_VERSION = "io.modelcontextprotocol/protocolVersion"
META_CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
# The parameter that the Mcp-Name header repeats.
NAMED_BY = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    "tasks/get": "taskId",
    "tasks/update": "taskId",
    "tasks/cancel": "taskId",
}
_PRINTABLE_ASCII = {*map(chr, range(0x20, 0x7F)), "\t"}


@dataclass(frozen=True)
class McpRequest:
    """One request or notification, with the protocol version for its response."""

    era: Era
    version: str
    method: str
    params: Mapping[str, Any]
    id: RequestId | None = None
    progress_token: str | int | float | None = None
    declares_tasks: bool = False

    @property
    def is_notification(self) -> bool:
        return self.id is None


@dataclass(frozen=True)
class Post:
    """The messages of one POST. In a batch, unreadable messages are among the others as errors."""

    messages: tuple[McpRequest | ProtocolError, ...]
    is_batch: bool = False


def parse(body: bytes, headers: Mapping[str, str]) -> Post:
    """Parse one POST. `headers` has lower-case keys. Raises ProtocolError.

    An empty `messages` means that the client only sent responses, which need no answer.
    """
    value = jsonrpc.decode(body)
    if isinstance(value, list):
        return _parse_batch(value, headers)
    try:
        return Post((_parse_one(value, headers),))
    except jsonrpc.ClientResponse:
        if _era_of_header(headers) is Era.MODERN:
            raise ProtocolError(
                jsonrpc.INVALID_REQUEST,
                "This server sends no requests, so it takes no responses.",
                modern=True,
            ) from None
        return Post(())


def _parse_batch(values: list[Any], headers: Mapping[str, str]) -> Post:
    if headers.get("mcp-protocol-version", ASSUMED_VERSION).strip() != BATCH_VERSION:
        raise ProtocolError(
            jsonrpc.INVALID_REQUEST,
            f"Only protocol version {BATCH_VERSION} has batches. Send one message per POST.",
        )
    if not values:
        raise ProtocolError(jsonrpc.INVALID_REQUEST, "The batch is empty.")
    if len(values) > MAX_BATCH:
        raise ProtocolError(jsonrpc.INVALID_REQUEST, f"A batch has at most {MAX_BATCH} messages.")
    messages: list[McpRequest | ProtocolError] = []
    for value in values:
        try:
            messages.append(_parse_in_batch(value, headers))
        except ProtocolError as error:
            messages.append(error)
        except jsonrpc.ClientResponse:
            continue
    return Post(tuple(messages), is_batch=True)


def _parse_in_batch(value: Any, headers: Mapping[str, str]) -> McpRequest:
    request = _parse_one(value, headers)
    if request.method == "initialize" or request.era is Era.MODERN:
        raise ProtocolError(
            jsonrpc.INVALID_REQUEST, f"{request.method} must not be in a batch.", request_id=request.id
        )
    return request


def _parse_one(value: Any, headers: Mapping[str, str]) -> McpRequest:
    era = _era_of_header(headers)
    envelope = None
    try:
        envelope = jsonrpc.read_envelope(value)
        era = _era(envelope, headers)
        return _modern(envelope, headers) if era is Era.MODERN else _handshake(envelope, headers)
    except ProtocolError as error:
        if envelope is not None:
            error.request_id = envelope.id
        error.modern = era is Era.MODERN
        error.http_status = http_status(error.code, era)
        raise


def _era_of_header(headers: Mapping[str, str]) -> Era:
    version = headers.get("mcp-protocol-version", "").strip()
    return Era.MODERN if version in MODERN_VERSIONS else Era.HANDSHAKE


def _era(envelope: Envelope, headers: Mapping[str, str]) -> Era:
    """The era of a request: modern ones name it; `initialize` starts a handshake, whatever its headers."""
    meta = envelope.params.get("_meta")
    if isinstance(meta, dict) and META_VERSION in meta:
        return Era.MODERN
    if envelope.method == "initialize":
        return Era.HANDSHAKE
    return Era.MODERN if envelope.method == "server/discover" else _era_of_header(headers)


# --- Handshake era


def _handshake(envelope: Envelope, headers: Mapping[str, str]) -> McpRequest:
    if envelope.method == "initialize":
        version = _negotiated(envelope.params)
    else:
        version = headers.get("mcp-protocol-version", SHAPE_WITHOUT_HEADER).strip()
        if version not in HANDSHAKE_VERSIONS:
            raise ProtocolError(
                jsonrpc.INVALID_REQUEST,
                f"MCP-Protocol-Version {version[:40]!a} is not supported. "
                f"Supported: {', '.join((*HANDSHAKE_VERSIONS, *MODERN_VERSIONS))}.",
                data={"supported": [*HANDSHAKE_VERSIONS, *MODERN_VERSIONS], "requested": version},
            )
    return McpRequest(
        era=Era.HANDSHAKE,
        version=version,
        method=envelope.method,
        params=envelope.params,
        id=envelope.id,
        progress_token=_progress_token(envelope.params),
    )


def _negotiated(params: Mapping[str, Any]) -> str:
    wanted = params.get("protocolVersion", NEWEST_HANDSHAKE)
    if not isinstance(wanted, str):
        raise ProtocolError(jsonrpc.INVALID_PARAMS, "protocolVersion must be a string.")
    return wanted if wanted in HANDSHAKE_VERSIONS else NEWEST_HANDSHAKE


# --- Modern era


def _modern(envelope: Envelope, headers: Mapping[str, str]) -> McpRequest:
    header = headers.get("mcp-protocol-version", "").strip()
    if not header:
        raise _mismatch("The MCP-Protocol-Version header is missing.")
    meta = envelope.params.get("_meta", {})
    version = header
    capabilities: Mapping[str, Any] = {}
    if not envelope.is_notification:  # a notification need not repeat its sender
        version, capabilities = _request_meta(meta)
    elif isinstance(meta, dict):
        version = meta.get(META_VERSION, header)
    if version != header:
        raise _mismatch(f"MCP-Protocol-Version is {header[:40]!a} but _meta says {str(version)[:40]!a}.")
    if version not in MODERN_VERSIONS:
        raise ProtocolError(
            jsonrpc.UNSUPPORTED_VERSION,
            f"Protocol version {version[:40]!a} is not supported without initialize. "
            f"Supported: {', '.join(MODERN_VERSIONS)}.",
            data={"supported": list(MODERN_VERSIONS), "requested": version},
        )
    _check_mirrored_headers(envelope, headers)
    return McpRequest(
        era=Era.MODERN,
        version=version,
        method=envelope.method,
        params=envelope.params,
        id=envelope.id,
        progress_token=_progress_token(envelope.params),
        declares_tasks=_declares_tasks(capabilities),
    )


def _request_meta(meta: Any) -> tuple[str, Mapping[str, Any]]:
    if not isinstance(meta, dict):
        raise ProtocolError(jsonrpc.INVALID_PARAMS, "params._meta must be an object.")
    version, capabilities = meta.get(META_VERSION), meta.get(META_CAPABILITIES)
    if not isinstance(version, str) or not version:
        raise ProtocolError(jsonrpc.INVALID_PARAMS, f"params._meta must have {META_VERSION}, a string.")
    if not isinstance(capabilities, dict):
        raise ProtocolError(
            jsonrpc.INVALID_PARAMS,
            f"params._meta must have {META_CAPABILITIES}, an object (it may be empty).",
        )
    return version, capabilities


def _declares_tasks(capabilities: Mapping[str, Any]) -> bool:
    extensions = capabilities.get("extensions")
    return isinstance(extensions, dict) and isinstance(extensions.get(TASKS_EXTENSION), dict)


def _check_mirrored_headers(envelope: Envelope, headers: Mapping[str, str]) -> None:
    """Check the headers against the body: proxies route on the headers and we act on the body."""
    _check_mirrored("Mcp-Method", headers.get("mcp-method"), envelope.method)
    name = envelope.params.get(NAMED_BY.get(envelope.method, ""))
    if isinstance(name, str):  # the method itself refuses a missing name
        _check_mirrored("Mcp-Name", headers.get("mcp-name"), name)


def _check_mirrored(header: str, sent: str | None, expected: str) -> None:
    if sent is None:
        raise _mismatch(f"The {header} header is missing.")
    if decode_header(header, sent.strip()) != expected:
        raise _mismatch(f"The {header} header does not match the body.")


def decode_header(header: str, value: str) -> str:
    """Decode a mirrored header: plain printable ASCII, or =?base64?…?= around UTF-8."""
    if not set(value) <= _PRINTABLE_ASCII:
        raise _mismatch(f"The {header} header has characters that must be sent as =?base64?…?=.")
    if not (value.startswith("=?base64?") and value.endswith("?=")):
        return value
    try:
        return base64.b64decode(value[len("=?base64?") : -len("?=")], validate=True).decode("utf-8")
    except (binascii.Error, UnicodeDecodeError):
        raise _mismatch(f"The {header} header is not valid base64 of UTF-8.") from None


def _mismatch(message: str) -> ProtocolError:
    return ProtocolError(jsonrpc.HEADER_MISMATCH, message)


def _progress_token(params: Mapping[str, Any]) -> str | int | float | None:
    meta = params.get("_meta")
    token = meta.get("progressToken") if isinstance(meta, dict) else None
    if token is None:
        return None
    if isinstance(token, bool) or not isinstance(token, (str, int, float)):
        raise ProtocolError(jsonrpc.INVALID_PARAMS, "_meta.progressToken must be a string or a number.")
    return token
