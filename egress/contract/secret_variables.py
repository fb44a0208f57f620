"""Secrets that a bottle was handed as variables, as its start writes them down for the proxy. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable

FILE = "secret_variables.json"  # in the bottle's `run` directory on the host: never mounted
# Taken from the host may also be what is no secret (a region, a mode): short words turn up by chance.
SHORTEST = 8
LONGEST = 16 * 1024  # a longer one is known by its beginning
# So long after the file is written the proxy judges every request by it. Whoever writes it waits as long.
KNOWN_AFTER_SECONDS = 0.01


def to_bytes(values: Iterable[str]) -> bytes:
    """Raises UnicodeEncodeError for what is no text."""
    return json.dumps(sorted(set(values)), ensure_ascii=False).encode("utf-8")


def from_bytes(content: bytes) -> frozenset[str]:
    """Raises ValueError."""
    values = json.loads(content)
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise ValueError("it is not a list of texts")
    return frozenset(values)


def searched_for(values: Iterable[str]) -> frozenset[str]:
    """Without the space around them, which tools take off too."""
    bare = (value.strip()[:LONGEST] for value in values)
    return frozenset(value for value in bare if len(value) >= SHORTEST)
