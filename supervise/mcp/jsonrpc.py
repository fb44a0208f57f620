"""The part of JSON-RPC 2.0 that MCP uses: bytes to checked messages, and responses to bytes.

Pure: no Django, no sockets. The bytes come straight from an agent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, NoReturn

from botbottle.web import rpc_errors

PARSE_ERROR = -32700
INVALID_REQUEST = rpc_errors.INVALID_REQUEST
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
HEADER_MISMATCH = -32020
MISSING_CAPABILITY = -32021
UNSUPPORTED_VERSION = -32022
UNAVAILABLE = rpc_errors.UNAVAILABLE

RequestId = str | int
Json = dict[str, Any]


class ProtocolError(Exception):
    """A request that cannot be served: the content of the JSON-RPC error, and its HTTP status."""

    def __init__(
        self,
        code: int,
        message: str,
        *,
        http_status: int = 400,
        request_id: RequestId | None = None,
        data: Json | None = None,
        modern: bool = False,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.http_status = http_status
        self.request_id = request_id
        self.data = data
        self.modern = modern

    def as_response(self) -> Json:
        error: Json = {"code": self.code, "message": self.message}
        if self.data is not None:
            error["data"] = self.data
        response: Json = {"jsonrpc": "2.0", "id": self.request_id, "error": error}
        if self.request_id is None and self.modern:  # 2026-07-28 leaves an unknown id out; JSON-RPC says null
            del response["id"]
        return response


@dataclass(frozen=True)
class Envelope:
    """One JSON-RPC message: a request if it has an id, else a notification."""

    method: str
    params: Mapping[str, Any] = field(default_factory=dict)
    id: RequestId | None = None

    @property
    def is_notification(self) -> bool:
        return self.id is None


class ClientResponse(Exception):
    """The message is a response. We send no requests, so there is nothing that it could answer."""


def decode(body: bytes) -> Any:
    """Decode a request's body. Raises ProtocolError -32700."""
    try:
        return json.loads(
            body.decode("utf-8"),
            parse_constant=_refuse_constant,
            parse_float=_finite,
            object_pairs_hook=_refuse_repeated_keys,
        )
    except UnicodeDecodeError:
        raise ProtocolError(PARSE_ERROR, "The body is not UTF-8. Send JSON encoded as UTF-8.") from None
    except RecursionError:
        raise ProtocolError(PARSE_ERROR, "The body is nested too deeply.") from None
    except json.JSONDecodeError as error:
        where = f"{error.msg} at character {error.pos}"
        raise ProtocolError(PARSE_ERROR, f"The body is not JSON: {where}.") from None
    except ValueError:  # NaN, Infinity, 1e400, an integer with thousands of digits
        raise ProtocolError(PARSE_ERROR, "The body has a number that JSON does not allow.") from None


def read_envelope(value: Any) -> Envelope:
    """Check one message. Raises ProtocolError -32600 or -32602, or ClientResponse."""
    if not isinstance(value, dict):
        raise ProtocolError(INVALID_REQUEST, "A message must be a JSON object with jsonrpc, id and method.")
    request_id = _read_id(value)
    if value.get("jsonrpc") != "2.0":
        raise ProtocolError(INVALID_REQUEST, 'jsonrpc must be the string "2.0".', request_id=request_id)
    if "method" not in value and ("result" in value or "error" in value):
        raise ClientResponse
    method = value.get("method")
    if not isinstance(method, str) or not method:
        raise ProtocolError(INVALID_REQUEST, "method must be a non-empty string.", request_id=request_id)
    params = value.get("params")
    if params is None:
        params = {}
    if not isinstance(params, dict):
        raise ProtocolError(INVALID_PARAMS, "params must be an object.", request_id=request_id)
    return Envelope(method=method, params=params, id=request_id)


def result_response(request_id: RequestId, result: Mapping[str, Any]) -> Json:
    return {"jsonrpc": "2.0", "id": request_id, "result": result}


def notification(method: str, params: Mapping[str, Any]) -> Json:
    return {"jsonrpc": "2.0", "method": method, "params": params}


class Prepared(Json):
    """A constant object that is sent often, with its encoded form."""

    def __init__(self, value: Mapping[str, Any]) -> None:
        super().__init__(value)
        self.encoded = encode(dict(value))


def encode(message: Json | list[Json]) -> bytes:
    """Encode as compact ASCII JSON: agent text cannot act on a terminal, a log or an SSE line."""
    if isinstance(message, dict) and isinstance(result := message.get("result"), Prepared):
        rest = _dumps({name: value for name, value in message.items() if name != "result"})
        return rest[:-1] + (b"," if len(message) > 1 else b"") + b'"result":' + result.encoded + b"}"
    return _dumps(message)


def _dumps(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=True, separators=(",", ":")).encode("ascii")


def _read_id(value: Mapping[str, Any]) -> RequestId | None:
    # A missing id makes a notification; a null, boolean or fractional one is a broken request.
    if "id" not in value:
        return None
    request_id = value["id"]
    if isinstance(request_id, bool) or not isinstance(request_id, (str, int)):
        raise ProtocolError(INVALID_REQUEST, "id must be a string or an integer.")
    return request_id


def _refuse_repeated_keys(pairs: list[tuple[str, Any]]) -> Json:
    """Refuse repeated keys: readers disagree on which one counts, so what is checked could differ from what
    runs.
    """
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ProtocolError(
            PARSE_ERROR, "The body has an object with the same key twice. Send each key once."
        )
    return value


def _finite(text: str) -> float:
    value = float(text)
    if not isfinite(value):  # or it would be echoed as Infinity, which is not JSON
        raise ValueError(text)
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)
