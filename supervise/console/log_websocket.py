"""A rebuild's log as it grows, to an open page.

The page says how far it has come, and gets what follows once it is there: so nothing is lost or told twice,
whenever it connects and to whichever worker, and no more is on the way than one part. The text came out of
an agent's build. It leaves here with every control character made visible, and the page shows it as text.
"""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from channels.db import database_sync_to_async

from supervise.bottles import build_log, images
from supervise.console.websockets import Watcher
from supervise.models import Rebuild
from supervise.sanitize import make_visible

DONE, NONSENSE, UNKNOWN = 4200, 4400, 4404
PART = 32 * 1024  # bytes of the log in one message
MOST_ASKED = 300  # characters of a message from the page
LOOK_SECONDS = 0.2
PROGRESS_SECONDS = 1.0
SETTLE_SECONDS = 10.0  # after the end, for what the proxy still has to tell


@dataclass(frozen=True, slots=True)
class Shown:
    """What a page has, in its own words."""

    rebuild: int
    offset: int
    progress: str


class LogConsumer(Watcher):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._following: asyncio.Task[None] | None = None
        self._shown: Shown | None = None
        self._asked = asyncio.Event()
        self._sent = 0
        self._progress = ""
        self._changed_at = self._looked_at = 0.0

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None, **_: Any) -> None:
        shown = _shown(text_data or "")
        if shown is None or (self._shown is not None and self._shown.rebuild != shown.rebuild):
            await self.close(NONSENSE)
            return
        self._shown, self._progress = shown, shown.progress
        if shown.offset >= self._sent:  # otherwise it has yet to take what is on the way
            self._asked.set()
        if self._following is None:
            self._following = asyncio.create_task(self._follow(shown.rebuild))

    async def disconnect(self, code: int) -> None:
        await super().disconnect(code)
        if self._following is not None:
            self._following.cancel()

    async def _follow(self, number: int) -> None:
        rebuild = await database_sync_to_async(_find)(number)
        if rebuild is None:
            await self.close(UNKNOWN)
            return
        self._changed_at = time.monotonic()
        while True:
            await self._tell_progress(rebuild)
            if not self._asked.is_set() or await self._tell_more(rebuild):
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_SECONDS):
                        await self._asked.wait()  # the page has not taken the last part yet
            elif not rebuild.is_open and time.monotonic() > self._changed_at + SETTLE_SECONDS:
                await self.close(DONE)
                return
            else:
                await asyncio.sleep(LOOK_SECONDS)

    async def _tell_more(self, rebuild: Rebuild) -> bool:
        """The next lines, once the page has those before them."""
        assert self._shown is not None  # noqa: S101 - it has asked
        before = self._shown.offset
        part = await asyncio.to_thread(build_log.after, images.log_path(rebuild), before, most=PART)
        if not part.text:
            return False
        self._asked.clear()
        self._sent = part.offset
        await self.send_json(
            {"type": "log", "after": before, "offset": part.offset, "text": make_visible(part.text)}
        )
        return True

    async def _tell_progress(self, rebuild: Rebuild) -> None:
        """That the page's panel is out of date; asked of the database, but not at each look."""
        now = time.monotonic()
        if now < self._looked_at + PROGRESS_SECONDS:
            return
        self._looked_at = now
        progress = await database_sync_to_async(_progress)(rebuild)
        if progress != self._progress:
            self._progress, self._changed_at = progress, now
            await self.send_json({"type": "progress", "progress": progress})


def _shown(text: str) -> Shown | None:
    if len(text) > MOST_ASKED:
        return None
    try:
        said = json.loads(text)
        shown = Shown(said["rebuild"], said["offset"], said["progress"])
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    if type(shown.rebuild) is not int or type(shown.offset) is not int or not isinstance(shown.progress, str):
        return None
    return shown if 0 < shown.rebuild < 2**31 and 0 <= shown.offset < 2**40 else None


def _find(number: int) -> Rebuild | None:
    return Rebuild.objects.select_related("bottle").filter(pk=number).first()


def _progress(rebuild: Rebuild) -> str:
    rebuild.refresh_from_db(fields=["phase", "build_started_at", "build_ended_at"])
    return images.progress_of(rebuild)
