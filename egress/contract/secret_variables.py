"""The file of a bottle's secret variables: its start writes it, the proxy searches for them. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable

FILE = "secret_variables.json"  # in the bottle's `run` directory on the host: never mounted
# Variables of the host need not be secret (a region, a mode): short words occur by chance.
SHORTEST = 8
LONGEST = 16 * 1024  # of a longer one only the beginning is searched for
# The proxy judges every request by the file from this time after its writing. The writer waits as long.
KNOWN_AFTER_SECONDS = 0.01


def to_bytes(values: Iterable[str]) -> bytes:
    """Raises UnicodeEncodeError for a value that is not text."""
    return json.dumps(sorted(set(values)), ensure_ascii=False).encode("utf-8")


def from_bytes(content: bytes) -> frozenset[str]:
    """Raises ValueError."""
    values = json.loads(content)
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise ValueError("it is not a list of texts")
    return frozenset(values)


def searched_for(values: Iterable[str]) -> frozenset[str]:
    """The values to search for, without surrounding white space, which tools remove too."""
    bare = (value.strip()[:LONGEST] for value in values)
    return frozenset(value for value in bare if len(value) >= SHORTEST)
