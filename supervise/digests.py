"""One byte form for each JSON value, so that equal things have equal digests."""

from __future__ import annotations

import hashlib
import json


def digest(value: object) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()
