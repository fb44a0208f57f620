"""Requests on a few threads: one that hangs keeps only its own."""

from __future__ import annotations

import asyncio
from threading import Event
from typing import Any

from asgiref.sync import sync_to_async

from botbottle.asgi import BoundedThreads


async def test_a_thread_that_is_busy_gets_no_request_while_another_is_idle() -> None:
    async def application(scope: Any, receive: Any, send: Any) -> None:
        await sync_to_async(scope["work"])()

    async def request(work: Any) -> None:
        await threads({"work": work}, None, None)

    hangs, answers = Event(), Event()
    threads = BoundedThreads(application, threads=2)
    hanging = asyncio.create_task(request(lambda: (hangs.set(), answers.wait(60))))
    await asyncio.to_thread(hangs.wait, 30)
    try:
        async with asyncio.timeout(30):
            for _ in range(4):
                await request(lambda: None)
    finally:
        answers.set()
    await hanging
