"""The console's websockets: the live queue, and the log of a rebuild.

Trust boundary: only staff who may view proposals are accepted; after losing that right they are disconnected
within a minute. The queue's messages carry only numbers. A log is the text of an agent's build: it is sent
with every control character made visible, and the page shows it as text.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncJsonWebsocketConsumer
from django.conf import settings
from django.contrib import auth
from django.contrib.auth.models import User
from django.http import HttpRequest

from botbottle.core.sanitize import make_visible
from botbottle.web.websockets import UNAVAILABLE
from supervise import events
from supervise.access.permissions import may_view
from supervise.bottles import build_log, images
from supervise.console.shared_reads import SharedAsyncRead
from supervise.models import Rebuild
from supervise.proposals import queries

log = logging.getLogger(__name__)
FORBIDDEN = 4403
RECHECK_SECONDS = 30.0
GROUPS = (events.QUEUE, events.BOTTLES)
COUNTS = SharedAsyncRead(queries.counts)  # all pages of a process receive an event at the same time
PAUSE_SECONDS = 0.3  # between two messages: events meanwhile are combined
# of a rebuild's log
DONE, NONSENSE, UNKNOWN = 4200, 4400, 4404
PART = 32 * 1024  # bytes of the log in one message
MOST_ASKED = 300  # characters of a message from the page
POLL_SECONDS = 0.2
PROGRESS_SECONDS = 1.0
LINGER_SECONDS = 10.0  # after the end, for late records of the proxy


class Watcher(AsyncJsonWebsocketConsumer):  # type: ignore[misc]
    """The websocket of a user who may view proposals, for as long as they may."""

    _rechecking: asyncio.Task[None] | None = None

    async def connect(self) -> None:
        if not await self._may_watch():
            await self.close(FORBIDDEN)
            return
        await self.subscribe()
        await self.accept()
        self._rechecking = asyncio.create_task(self._recheck())

    async def subscribe(self) -> None:
        """Called before accepting: the page fetches its state afterwards, so nothing is missed."""

    async def disconnect(self, code: int) -> None:
        if self._rechecking is not None:
            self._rechecking.cancel()

    async def _recheck(self) -> None:
        while True:
            await asyncio.sleep(RECHECK_SECONDS)
            if not await self._may_still_watch():
                await self.close(FORBIDDEN)
                return

    async def _may_still_watch(self) -> bool:
        """Returns False if the check fails. The page connects again, and is checked again."""
        try:
            return await self._may_watch()
        except Exception:
            log.exception("a right to watch could not be checked again")
            return False

    async def _may_watch(self) -> bool:
        session = self.scope.get("session")
        key = session.session_key if session is not None else None
        return key is not None and await database_sync_to_async(_session_may_watch)(key)


class QueueConsumer(Watcher):
    """The queue page's websocket. What the page sends is ignored: decisions are made by forms."""

    _sending: asyncio.Task[None] | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._news: set[str] = set()

    async def subscribe(self) -> None:
        for group in GROUPS:
            await self.channel_layer.group_add(group, self.channel_name)

    async def disconnect(self, code: int) -> None:
        await super().disconnect(code)
        if self._sending is not None:
            self._sending.cancel()
        for group in GROUPS:
            await self.channel_layer.group_discard(group, self.channel_name)

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None, **_: Any) -> None:
        return

    async def proposal_event(self, event: dict[str, Any]) -> None:
        self._notify("proposals")

    async def refused_event(self, event: dict[str, Any]) -> None:
        self._notify("refused")

    async def bottle_event(self, event: dict[str, Any]) -> None:
        await self.send_json({"type": "bottle", "id": event["id"]})

    def _notify(self, of: str) -> None:
        self._news.add(of)
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send_or_close())

    async def _send_or_close(self) -> None:
        """Close the connection if the counts cannot be read: the page connects again and reads its state."""
        try:
            await self._send_updates()
        except Exception:
            log.exception("an open page could not be notified of changes")
            await self.close(UNAVAILABLE)

    async def _send_updates(self) -> None:
        """Send the first update at once; then at most one message of each kind per pause."""
        while self._news:
            news, self._news = self._news, set()
            if "proposals" in news:
                await self.send_json({"type": "proposals", "counts": await COUNTS.get()})
            if "refused" in news:
                await self.send_json({"type": "refused"})
            await _pause()


async def _pause() -> None:
    await asyncio.sleep(PAUSE_SECONDS)


def _session_may_watch(session_key: str) -> bool:
    """Check in the database each time: sessions end, passwords and permissions change."""
    request = HttpRequest()
    request.session = import_module(settings.SESSION_ENGINE).SessionStore(session_key)
    user = auth.get_user(request)
    return isinstance(user, User) and may_view(user)


@dataclass(frozen=True, slots=True)
class Shown:
    """What a page reports to have."""

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
        self._changed_at = self._progress_read_at = 0.0

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None, **_: Any) -> None:
        shown = _shown(text_data or "")
        if shown is None or (self._shown is not None and self._shown.rebuild != shown.rebuild):
            await self.close(NONSENSE)
            return
        self._shown, self._progress = shown, shown.progress
        if shown.offset >= self._sent:  # otherwise the last part is still on its way
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
            await self._send_progress(rebuild)
            if not self._asked.is_set() or await self._send_more(rebuild):
                with suppress(TimeoutError):
                    async with asyncio.timeout(POLL_SECONDS):
                        await self._asked.wait()  # the page does not have the last part yet
            elif not rebuild.is_open and time.monotonic() > self._changed_at + LINGER_SECONDS:
                await self.close(DONE)
                return
            else:
                await asyncio.sleep(POLL_SECONDS)

    async def _send_more(self, rebuild: Rebuild) -> bool:
        """Send the next lines, once the page has those before them."""
        assert self._shown is not None  # noqa: S101 - set by the page's first message
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

    async def _send_progress(self, rebuild: Rebuild) -> None:
        """Tell the page if its panel is out of date; read from the database at most once a second."""
        now = time.monotonic()
        if now < self._progress_read_at + PROGRESS_SECONDS:
            return
        self._progress_read_at = now
        progress = await database_sync_to_async(_progress)(rebuild)
        if progress != self._progress:
            self._progress, self._changed_at = progress, now
            await self.send_json({"type": "progress", "progress": progress})


def _shown(text: str) -> Shown | None:
    if len(text) > MOST_ASKED:
        return None
    try:
        message = json.loads(text)
        shown = Shown(message["rebuild"], message["offset"], message["progress"])
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
