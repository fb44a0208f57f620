"""The live table as files that its bottle can read: written with every swap and when a lease ends.

They are mounted read-only.

Trust boundary: the agent reads these: nothing about other bottles in them, and no secret's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from botbottle.core.files import write_atomically
from egress.contract.snapshot import as_yaml
from egress.policy.routes import Route

DIRECTORY = "current-config"


class PublishedConfig(NamedTuple):
    """What the bottle's files say."""

    version: int
    routes: tuple[Route, ...]


def render(slug: str, told: PublishedConfig) -> dict[str, str]:
    """The texts of the files, by name."""
    routes = [route.as_public_dict() for route in told.routes]
    table: dict[str, Any] = {"bottle": slug, "version": told.version, "routes": routes}
    return {"routes.yaml": as_yaml(table), "allowlist": "".join(f"{route.host}\n" for route in told.routes)}


def write(directory: Path, texts: Mapping[str, str]) -> None:
    """Raises OSError. Not synced to the disk: the next swap, or the next start, writes them again."""
    target = directory / DIRECTORY
    target.mkdir(exist_ok=True)
    target.chmod(0o755)  # the bottle's user may be another one; others do not get this far
    for name, text in texts.items():
        # read by the bottle's user, whatever its id
        write_atomically(target / name, text, mode=0o644, synced=False, also_when_full=True)
