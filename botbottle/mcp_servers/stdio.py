"""Joins standard input and output to a managed server's websocket, for clients that only start programs.

A line is a message, in both directions. Output of the bottle is passed on unchanged.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import IO, Any

from autobahn.asyncio.websocket import WebSocketClientFactory, WebSocketClientProtocol

URL = "ws://127.0.0.1:9100/mcp/servers/{name}"  # the same as inside the bottle
MOST_BEHIND = 1 << 20  # bytes that the server has not accepted yet
WELL = (1000, 1005)


class StdioBridge(WebSocketClientProtocol):
    def __init__(self, lines_in: IO[bytes], lines_out: IO[bytes]) -> None:
        super().__init__()
        self.lines_in, self.lines_out = lines_in, lines_out
        self.end: asyncio.Future[tuple[int, str]] = asyncio.get_running_loop().create_future()

    def onOpen(self) -> None:  # noqa: N802 - the library's name
        threading.Thread(target=self.take_lines, args=(asyncio.get_running_loop(),), daemon=True).start()

    def onMessage(self, payload: bytes, isBinary: bool) -> None:  # noqa: N802, N803
        self.lines_out.write(payload + b"\n")
        self.lines_out.flush()

    def onClose(self, wasClean: bool, code: int | None, reason: str | None) -> None:  # noqa: N802, N803
        if not self.end.done():
            self.end.set_result((code or 1006, reason or ""))

    def take_lines(self, loop: asyncio.AbstractEventLoop) -> None:
        """Read lines on a thread: standard input can be a kind of file that an event loop cannot wait for."""
        for line in self.lines_in:
            if line.strip():
                asyncio.run_coroutine_threadsafe(self.pass_on(line.strip()), loop).result()
            while not self.end.done() and self.transport.get_write_buffer_size() > MOST_BEHIND:
                time.sleep(0.01)
        loop.call_soon_threadsafe(self.sendClose, 1000)

    async def pass_on(self, message: bytes) -> None:
        self.sendMessage(message)  # type: ignore[no-untyped-call]


def bridge_stdio(socket: Path, name: str) -> tuple[int, str]:
    """Copy until either side ends; returns the websocket's code and reason.

    Raises OSError when nothing listens.
    """
    return asyncio.run(_bridge(socket, name))


async def _bridge(socket: Path, name: str) -> tuple[int, str]:
    factory = WebSocketClientFactory(URL.format(name=name), protocols=["mcp"])  # type: ignore[no-untyped-call]
    factory.protocol = partial(StdioBridge, _input(), sys.stdout.buffer)  # type: ignore[assignment]
    directory = os.open(socket.parent, os.O_PATH | os.O_DIRECTORY)  # its path may be too long for an address
    try:
        loop = asyncio.get_running_loop()
        opened: tuple[Any, StdioBridge] = await loop.create_unix_connection(
            factory, f"/proc/self/fd/{directory}/{socket.name}"
        )
    finally:
        os.close(directory)
    return await opened[1].end


def _input() -> IO[bytes]:
    """A reader of our own: Python closes `sys.stdin` as it ends, and aborts while a thread reads from it."""
    return os.fdopen(sys.stdin.fileno(), "rb", closefd=False)
