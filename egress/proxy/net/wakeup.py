"""How the one task that serves a connection is woken."""

from __future__ import annotations

import asyncio


class Wakeup:
    """Wakes one task, which then finds out for itself what has happened."""

    __slots__ = ("_future", "_loop", "_rung")

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None  # asking for it costs a system call
        self._future: asyncio.Future[None] | None = None
        self._rung = False

    def ring(self) -> None:
        if self._future is None:
            self._rung = True
        elif not self._future.done():
            self._future.set_result(None)

    async def wait(self) -> None:
        if self._rung:
            self._rung = False
            return
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        self._future = self._loop.create_future()
        try:
            await self._future
        finally:
            self._future = None
