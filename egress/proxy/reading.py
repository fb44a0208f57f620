"""Waiting for a whole head on a wire, within its limits of size and time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from .config import Limits
from .errors import BadRequest, Gone
from .wire import Wire


async def read_head(wire: Wire, limits: Limits, stopping: Callable[[], bool]) -> bytes | None:
    """The bytes of the next head, or None when the connection is over. Raises BadRequest, or Gone.

    Before its first byte a head may take as long as an idle connection is kept; from then on every byte of it
    has to arrive within one deadline, however it is dripped.
    """
    loop = asyncio.get_running_loop()
    wire.expired = False
    wire.deadline = loop.time() + limits.keep_alive_seconds
    started = False
    while True:
        if wire.buffer:
            end = wire.buffer.find(b"\r\n\r\n")
            if end > limits.head_bytes or (end < 0 and len(wire.buffer) > limits.head_bytes):
                raise BadRequest("too-large", f"The head is larger than {limits.head_bytes} bytes.", 431)
            if end >= 0:
                await _until_drained(wire, loop.time() + limits.idle_seconds)
                return wire.take(end + 4)
            if not started:
                started = True
                wire.deadline = loop.time() + limits.head_seconds
        if wire.ended or (stopping() and not started):
            return None
        if wire.expired:
            if started:
                raise BadRequest("timeout", "The request did not come in time.", 408)
            return None
        await wire.bell.wait()


async def _until_drained(wire: Wire, deadline: float) -> None:
    """A client that does not read its answers gets no more of them."""
    wire.deadline = deadline
    while wire.choked:
        if wire.ended or wire.expired:
            raise Gone
        await wire.bell.wait()
