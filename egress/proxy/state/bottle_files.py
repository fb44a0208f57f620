"""A bottle's own files: which bottles there are, their identity, and their route tables.

Trust boundary: files may be missing, torn or old. Everything that cannot be used raises an error.
"""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass
from pathlib import Path

from egress.contract import snapshot as snapshots
from egress.policy.errors import BadSnapshot
from egress.policy.table import Snapshot

SLUG = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_IDENTITY = "identity.json"
_TORN_READS = 5  # the publisher writes two files: a reader may come between
_BETWEEN_READS = 0.02


@dataclass(frozen=True, slots=True)
class Identity:
    token_sha256: bytes | None  # None: the bottle has only its sockets
    supervise: bool  # whether it may ask for anything


def exists(directory: Path) -> bool:
    """A bottle is there as long as its directory holds an identity or a table."""
    return (directory / _IDENTITY).is_file() or (directory / "routes.yaml").is_file()


def found_in(bottles: Path) -> list[str]:
    """The slugs of all bottles there, sorted."""
    if not bottles.is_dir():
        return []
    return sorted(entry.name for entry in bottles.iterdir() if SLUG.fullmatch(entry.name) and exists(entry))


def read_identity(directory: Path, slug: str) -> Identity:
    """Raises ValueError."""
    try:
        identity = json.loads((directory / _IDENTITY).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Identity(None, supervise=True)
    except ValueError as error:
        raise ValueError("identity.json is not valid JSON") from error
    if not isinstance(identity, dict) or identity.get("slug") != slug:
        raise ValueError("identity.json names another bottle")
    digest = identity.get("token_sha256")
    if not isinstance(digest, str) or not re.fullmatch(r"[0-9a-f]{64}", digest):
        raise ValueError("identity.json has no token_sha256 of 64 hex digits")
    supervise = identity.get("supervise", True)
    if not isinstance(supervise, bool):
        raise ValueError("identity.json must say true or false for supervise")
    return Identity(digest.encode("ascii"), supervise)


async def load_table(directory: Path, slug: str) -> Snapshot:
    """Raises OSError, or ValueError."""
    for attempt in range(_TORN_READS):
        try:
            return await asyncio.to_thread(_load, directory, slug)
        except BadSnapshot:
            if attempt == _TORN_READS - 1:
                raise
        await asyncio.sleep(_BETWEEN_READS)
    raise AssertionError("unreachable")


def _load(directory: Path, slug: str) -> Snapshot:
    try:
        texts = [(directory / name).read_text(encoding="utf-8") for name in ("routes.yaml", "gate.yaml")]
    except UnicodeDecodeError as error:
        raise BadSnapshot("the snapshot is not UTF-8 text") from error
    fresh = snapshots.load(*texts)
    if fresh.bottle != slug:
        raise BadSnapshot("the snapshot belongs to another bottle")
    return fresh


def problem_text(error: Exception) -> str:
    """A sentence about it, for the operator."""
    text = f"{Path(error.filename).name} is missing" if isinstance(error, FileNotFoundError) else str(error)
    return text + "."
