"""Watches the space on this home's disk: keeps the database's reserve, and stops a bottle that fills the
disk.

Nothing is deleted: what a bottle wrote stays for its operator to inspect.
"""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from pathlib import Path

from django.conf import settings
from django.db import DatabaseError, transaction

from botbottle.core import disk_space
from botbottle.core.disk_space import Room
from botbottle.core.plan_types import BackendError
from botbottle.database import reserve
from botbottle.leader_thread import LeaderThread
from botbottle.models import Bottle
from egress.tables import homes
from supervise import audit, events
from supervise.bottles import lifecycle
from supervise.bottles.state_from_journal import BY_ITSELF
from supervise.disk import notice
from supervise.disk.shares import Share, shares
from supervise.errors import SuperviseError

log = logging.getLogger(__name__)
ROUND_SECONDS = 1.0
RESERVE_SECONDS = 10.0
MEASURING_SECONDS = 10.0  # from one measurement to the next
RECENT_SECONDS = 300.0
STOP_SECONDS = 1.0  # a bottle that fills the disk has no space to finish its work
STOPPED = "stopped to save the disk"


class DiskWatch(LeaderThread):
    """Runs in every web process; one per home does the work."""

    name = "disk"
    pause_seconds = ROUND_SECONDS

    def __init__(self) -> None:
        super().__init__()
        self._shortage: Shortage | None = None
        self._reserve_at = 0.0

    def work(self) -> bool:
        room = disk_space.room_in(Path(settings.BOTTLE_HOME))
        if self._shortage is None:
            self._detect_shortage(room)
        elif room.is_ample:
            self._shortage.end(room)
            self._shortage, self._reserve_at = None, 0.0
        if self._shortage is not None:
            self._shortage.check(room)
        return False

    def _detect_shortage(self, room: Room) -> None:
        if room.is_short:
            self._shortage = Shortage(room)
        elif time.monotonic() >= self._reserve_at and room.free >= room.wanted + reserve.BYTES:
            reserve.fill()
            notice.make_place()
            self._reserve_at = time.monotonic() + RESERVE_SECONDS


class Shortage:
    """The time from when the disk is short until there is enough space again."""

    def __init__(self, room: Room) -> None:
        log.error("%s", notice.cause(room))
        self._measure_at = 0.0
        self._before: dict[str, int] = {}
        self._stopped: dict[str, int] = {}

    def check(self, room: Room) -> None:
        """Measure the bottles now and then, and stop one that fills the disk."""
        if time.monotonic() < self._measure_at:
            return
        self._measure_at = time.monotonic() + MEASURING_SECONDS
        self._release()
        found = shares(since=time.time() - RECENT_SECONDS)
        filler = self._filler(found, room)
        is_stopped = filler is None or self._stop(filler)
        for share in found:
            if share.is_running and (is_stopped or share != filler):
                self._before.setdefault(share.slug, share.total)
        self._publish(found)

    def end(self, room: Room) -> None:
        self._stopped.clear()
        self._publish([])
        log.warning("The disk has room again: %s.", room.describe())

    def _release(self) -> None:
        try:
            if reserve.release():
                log.error("The database's reserve is released: operators can still decide.")
        except DatabaseError as error:
            log.error("The database's reserve cannot be released: %s", error)

    def _publish(self, found: list[Share]) -> None:
        with suppress(OSError):  # pages then show only the cause
            notice.write(found, self._stopped)

    def _filler(self, found: list[Share], room: Room) -> Share | None:
        """The running bottle that wrote most, if that is much; on a full disk also one that hides files."""
        candidates = [share for share in found if share.is_running]
        most = max(candidates, key=self._taken, default=None)
        if most is not None and self._taken(most) >= room.wanted // 2:
            return most
        is_full = room.free < room.wanted // 8
        return next((share for share in candidates if share.hides and is_full), None)

    def _taken(self, share: Share) -> int:
        """Bytes since this shortage began; before the first measurement, of the last minutes."""
        return share.total - self._before[share.slug] if share.slug in self._before else share.recent

    def _stop(self, filler: Share) -> bool:
        """Stop a bottle. Returns False if it cannot be stopped, and is tried again."""
        taken = self._taken(filler)
        try:
            bottle = lifecycle.stop(filler.slug, author=BY_ITSELF, seconds=STOP_SECONDS)
        except (SuperviseError, BackendError, OSError) as error:
            log.error("Bottle %s fills the disk and cannot be stopped: %s", filler.slug, error)
            return False
        self._before[filler.slug] = filler.total
        self._stopped[filler.slug] = taken
        reason = _reason(filler, taken)
        log.error("Bottle %s: %s", filler.slug, reason)
        with transaction.atomic():
            Bottle.objects.filter(pk=bottle.pk).update(problem=reason)
            audit.append(
                STOPPED,
                actor_name=BY_ITSELF,
                bottle_slug=filler.slug,
                details={"written_bytes": taken, "total_bytes": filler.total},
            )
            events.announce_bottle(bottle, bottle.state)
        return True


def _reason(filler: Share, taken: int) -> str:
    did = (
        f"this bottle had just written {disk_space.size(taken)}"
        if taken > 0
        else "this bottle has files that cannot be measured"
    )
    where = homes.bottle_directory(Bottle(slug=filler.slug))
    return f"Stopped, because the disk was nearly full and {did}. Nothing was deleted. Look into {where}."
