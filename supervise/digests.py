"""One byte form for each JSON value, so that equal things have equal digests. Pure."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def digest(value: object) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def ask_digest(tool: str, payload: dict[str, Any]) -> str:
    """Equal for equal asks, whatever the justification."""
    return digest([tool, payload])


def vote_digest(status: str, seen_digest: str, payload: dict[str, Any]) -> str:
    """What one operator's approval is for: the answer, the state that was seen, and the payload to grant."""
    return digest([status, seen_digest, payload])
