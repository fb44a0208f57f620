"""The live queue's websocket: tells open pages that something changed, by numbers only.

Trust boundary: only staff who may see proposals get in, and who loses that right is put out within a minute.
"""

from __future__ import annotations

import asyncio
import logging
from importlib import import_module
from typing import Any

from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncJsonWebsocketConsumer
from django.conf import settings
from django.contrib import auth
from django.contrib.auth.models import User
from django.http import HttpRequest

from botbottle.web.websockets import UNAVAILABLE
from supervise import events
from supervise.access.permissions import may_view
from supervise.console.shared_reads import SharedLook
from supervise.proposals import queries

log = logging.getLogger(__name__)
FORBIDDEN = 4403
RECHECK_SECONDS = 30.0
GROUPS = (events.QUEUE, events.BOTTLES)
COUNTS = SharedLook(queries.counts)  # all pages of a process hear of an event at the same time
PAUSE_SECONDS = 0.3  # between two messages: what happens meanwhile goes into one


class Watcher(AsyncJsonWebsocketConsumer):  # type: ignore[misc]
    """Of somebody who may see proposals, for as long as they may."""

    _rechecking: asyncio.Task[None] | None = None

    async def connect(self) -> None:
        if not await self._may_watch():
            await self.close(FORBIDDEN)
            return
        await self.subscribe()
        await self.accept()
        self._rechecking = asyncio.create_task(self._recheck())

    async def subscribe(self) -> None:
        """Before accepting: the page fetches its state after that, so nothing falls between."""

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
        """When that cannot be found out, no. The page connects again, and is asked again."""
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
    """One open page. What it sends back is ignored: decisions are made by forms."""

    _telling: asyncio.Task[None] | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._news: set[str] = set()

    async def subscribe(self) -> None:
        for group in GROUPS:
            await self.channel_layer.group_add(group, self.channel_name)

    async def disconnect(self, code: int) -> None:
        await super().disconnect(code)
        if self._telling is not None:
            self._telling.cancel()
        for group in GROUPS:
            await self.channel_layer.group_discard(group, self.channel_name)

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None, **_: Any) -> None:
        return

    async def proposal_event(self, event: dict[str, Any]) -> None:
        self._hear("proposals")

    async def refused_event(self, event: dict[str, Any]) -> None:
        self._hear("refused")

    async def bottle_event(self, event: dict[str, Any]) -> None:
        await self.send_json({"type": "bottle", "id": event["id"]})

    def _hear(self, of: str) -> None:
        self._news.add(of)
        if self._telling is None or self._telling.done():
            self._telling = asyncio.create_task(self._tell_or_close())

    async def _tell_or_close(self) -> None:
        """Close the connection when the counts cannot be read: the page connects again and reads its state."""
        try:
            await self._tell()
        except Exception:
            log.exception("an open page could not be told of changes")
            await self.close(UNAVAILABLE)

    async def _tell(self) -> None:
        """The first news at once; then, however many come, one message of a kind in a while."""
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
    """Asked of the database anew each time: sessions end, passwords and permissions change."""
    request = HttpRequest()
    request.session = import_module(settings.SESSION_ENGINE).SessionStore(session_key)
    user = auth.get_user(request)
    return isinstance(user, User) and may_view(user)
