"""The client connections that are being served, and how a stop waits for them."""

from __future__ import annotations

import asyncio

from egress.proxy.net.wakeup import Wakeup


class OpenSessions(set[Wakeup]):
    """By what wakes the task that serves each."""

    def __init__(self) -> None:
        super().__init__()
        self.are_ending = False  # each ends when its request is done

    async def finish(self, seconds: float) -> None:
        """Let what is under way come to its end, within the limit."""
        self.are_ending = True
        for wakeup in list(self):
            wakeup.ring()
        await self.wait_until_none(seconds)

    async def wait_until_none(self, seconds: float) -> None:
        clock = asyncio.get_running_loop().time
        deadline = clock() + seconds
        while self and clock() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
