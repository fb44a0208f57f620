"""The notice on every page when the disk is short: the cause, the largest bottles, and what to do."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import DatabaseError
from django.http import HttpRequest

from botbottle.core import disk_space
from botbottle.core.disk_space import Room, size
from botbottle.core.files import write_atomically
from botbottle.database import reserve
from supervise.disk.shares import Share

SHOWN = 3
STRANGERS = "The disk is nearly full. Sign in to see which, and what to do."
PLACE_BYTES = 4096  # one block, which is overwritten while the disk is full


def notice() -> list[str]:
    """The sentences of the notice, or none while there is enough space."""
    room = disk_space.room_in(Path(settings.BOTTLE_HOME))
    if not (room.is_short or reserve.is_needed()):
        return []
    return [cause(room), _consequence(), *_measured(), _advice(room)]


def context(request: HttpRequest) -> dict[str, Any]:
    """A context processor for every template."""

    def sentences() -> list[str]:
        found = notice()
        is_known = hasattr(request, "user") and request.user.is_authenticated
        return found if is_known or not found else [STRANGERS]

    return {"disk_notice": sentences}


def cause(room: Room) -> str:
    return f"The disk is nearly full: in the file system of {settings.BOTTLE_HOME}, {room.describe()}."


def _consequence() -> str:
    if not reserve.is_needed():
        return "The database is elsewhere. What is written on this machine may fail: bottles may not start."
    refused = "Agents' asks are refused, and records of traffic are dropped."
    if not (left := _left()):
        return f"{refused} The database has no reserve left: what operators decide may fail, and says so."
    return (
        f"{refused} Signing in, deciding, withdrawing routes and stopping bottles work: the database keeps "
        f"{size(left)} for that."
    )


def _left() -> int:
    with suppress(DatabaseError):
        return reserve.left()
    return 0


def _advice(room: Room) -> str:
    return (
        "Free some space: delete files in bottles' workspaces, old images ('docker system prune') or logs. "
        f"With {size(2 * room.wanted)} free, everything continues by itself."
    )


def write(found: Sequence[Share], stopped: Mapping[str, int]) -> None:
    """Publish the measurement to every worker of this home. Raises OSError."""
    largest = [[share.slug, share.total, share.is_complete] for share in found[:SHOWN]]
    text = json.dumps({"largest": largest, "stopped": dict(list(stopped.items())[:SHOWN])})
    write_atomically(_place(), text.ljust(PLACE_BYTES), synced=False, also_when_full=True)


def make_place() -> None:
    """Create the file that can be overwritten later, when there is no space for a new one. Raises OSError."""
    if not _place().exists():
        write([], {})


def _place() -> Path:
    return Path(settings.BOTTLE_HOME) / "run" / "disk-usage"


def _measured() -> list[str]:
    try:
        known = json.loads(_place().read_text(encoding="utf-8"))
        stopped = [
            f"Stopped, because it filled the disk: bottle {slug}, which had just written {size(taken)}."
            for slug, taken in known["stopped"].items()
        ]
        largest = [
            f"{slug} ({'' if complete else 'at least '}{size(total)})"
            for slug, total, complete in known["largest"]
        ]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return [*stopped, f"Bottles that take most of it: {', '.join(largest)}."] if largest else stopped
