"""JSON-RPC errors that are answered before a request reaches Django. Pure."""

from __future__ import annotations

import json

INVALID_REQUEST = -32600
UNAVAILABLE = -32010  # our own code: the request is valid and may be sent again later


def error_body(code: int, sentence: str) -> bytes:
    """An error in the same shape as the MCP endpoint's own errors."""
    error = {"code": code, "message": sentence}
    return json.dumps({"jsonrpc": "2.0", "id": None, "error": error}).encode("ascii")
