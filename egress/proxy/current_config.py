"""The live table as files that its bottle can read: written with every swap, mounted read-only.

Trust boundary: the agent reads these: nothing about other bottles in them, and no secret's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from egress.policy import Snapshot
from egress.snapshot import as_yaml, write_atomically

DIRECTORY = "current-config"


def render(snapshot: Snapshot, now: datetime) -> dict[str, str]:
    """The texts of the files, by name."""
    open_routes = [route.as_public_dict() for route in snapshot.table.open_routes(now)]
    table: dict[str, Any] = {"bottle": snapshot.bottle, "version": snapshot.version, "routes": open_routes}
    hosts = "".join(f"{route['host']}\n" for route in open_routes)
    return {"routes.yaml": as_yaml(table), "allowlist": hosts}


def write(directory: Path, texts: Mapping[str, str]) -> None:
    """Raises OSError. Not synced to the disk: the next swap, or the next start, writes them again."""
    target = directory / DIRECTORY
    target.mkdir(exist_ok=True)
    target.chmod(0o755)  # the bottle's user may be another one; others do not get this far
    for name, text in texts.items():
        # read by the bottle's user, whatever its id
        write_atomically(target / name, text, mode=0o644, synced=False)
