"""Operators' open queue pages, as queue.js behaves: a websocket, and a look at the state after an event."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlencode

import websockets

from bench.subjects import ROOT, BotBottle, environment
from bench.wire import Connection, request

LOOK_SECONDS = 0.7  # after an event, as REFRESH_MS in queue.js
SESSIONS = """
import django, json, sys
django.setup()
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.auth.models import User
from django.contrib.sessions.backends.db import SessionStore
from django.conf import settings
user = User.objects.get()
keys = []
for _ in range(int(sys.argv[1])):
    session = SessionStore()
    session[SESSION_KEY], session[HASH_SESSION_KEY] = str(user.pk), user.get_session_auth_hash()
    session[BACKEND_SESSION_KEY] = settings.AUTHENTICATION_BACKENDS[0]
    session["began"] = session["seen"] = __import__("time").time()
    session.save()
    keys.append(session.session_key)
print(json.dumps({"name": settings.SESSION_COOKIE_NAME, "keys": keys}))
"""


class Console:
    """One open page."""

    def __init__(self, port: int, cookie: str, connection: Connection) -> None:
        self._port, self._connection = port, connection
        self._headers = {"Cookie": cookie, "X-Fragment": "1", "X-Background": "1"}
        self._since, self._ids = "", list[str]()
        self._look: asyncio.Task[None] | None = None
        self.events = self.looks = 0

    async def show(self) -> None:
        """Make the list, as the page does when it is opened."""
        answer = await self._connection.send(request("GET", "/queue/list", headers=self._headers))
        if answer.status != 200:
            raise SystemExit(f"a console was refused: {answer.status} {answer.body[:300]!r}")
        page = answer.body.decode()
        found = re.search(r'data-since="([^"]*)"', page)
        self._since = found[1] if found else ""
        self._ids = re.findall(r'<article[^>]*data-id="([^"]*)"', page)

    async def listen(self) -> None:
        origin = f"http://127.0.0.1:{self._port}"
        address = f"ws://127.0.0.1:{self._port}/ws/queue/"
        headers = {"Cookie": self._headers["Cookie"], "Origin": origin}
        async with websockets.connect(address, additional_headers=headers) as socket:
            async for text in socket:
                if json.loads(text)["type"] != "refused":
                    self.events += 1
                    self._look_soon()

    @property
    def is_quiet(self) -> bool:
        return self._look is None or self._look.done()

    def _look_soon(self) -> None:
        if self.is_quiet:
            self._look = asyncio.create_task(self._fetch())

    async def _fetch(self) -> None:
        await asyncio.sleep(LOOK_SECONDS)
        query = urlencode([("since", self._since), *(("id", each) for each in self._ids)])
        answer = await self._connection.send(request("GET", f"/queue/state?{query}", headers=self._headers))
        if answer.status != 200:
            raise SystemExit(f"a console was refused: {answer.status} {answer.body[:300]!r}")
        self.looks += 1

    def close(self) -> None:
        if self._look is not None:
            self._look.cancel()
        self._connection.close()


@asynccontextmanager
async def open_consoles(subject: BotBottle, count: int) -> AsyncIterator[list[Console]]:
    """So many pages of as many sessions, all of them subscribed."""
    cookies = _sessions(subject, count) if count else []
    port = subject.operator_port
    consoles = [Console(port, cookie, await Connection.open(port)) for cookie in cookies]
    for console in consoles:
        await console.show()
    listening = [asyncio.create_task(console.listen()) for console in consoles]
    await asyncio.sleep(1.0 if consoles else 0.0)
    try:
        yield consoles
    finally:
        for task, console in zip(listening, consoles, strict=True):
            task.cancel()
            console.close()
        for task in listening:
            with suppress(asyncio.CancelledError):
                await task


def _sessions(subject: BotBottle, count: int) -> list[str]:
    finished = subprocess.run(
        [sys.executable, "-c", SESSIONS, str(count)], cwd=ROOT, env=environment(subject.home), text=True,
        stdout=subprocess.PIPE, check=True, timeout=300,
    )  # fmt: skip
    made = json.loads(finished.stdout)
    return [f"{made['name']}={key}" for key in made["keys"]]
