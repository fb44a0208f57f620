"""Wait for a whole head, a whole body, or the end of a connection, within limits of size and time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from egress.dlp.scanner import Steps
from egress.proxy.config import Limits
from egress.proxy.errors import BadRequest, Gone
from egress.proxy.http.body import Body, body_of, payloads
from egress.proxy.http.heads import RequestHead
from egress.proxy.net.connection import Connection
from egress.proxy.net.fair_scheduler import Begin, result

_LINGER_SECONDS, _QUIET_SECONDS, _LINGER_BYTES = 2.0, 0.2, 1024 * 1024


class Interlude(Protocol):
    """Serves requests of a connection while its task waits for the next head."""

    @property
    def is_busy(self) -> bool:
        """Whether a request is under way."""

    @property
    def is_stuck(self) -> bool:
        """Whether only the task can bring it to an end."""


async def read_head(
    connection: Connection,
    limits: Limits,
    stopping: Callable[[], bool],
    interlude: Interlude | None = None,
    *,
    silence: float,
) -> bytes | None:
    """The bytes of the next head, or None when the connection is over. Raises BadRequest, or Gone.

    Nothing is read while the interlude is busy; None is returned when it is stuck.

    The first byte may take `silence` seconds; from then on the whole head has to arrive within one deadline,
    however it is dripped.
    """
    started = False
    if interlude is None or not interlude.is_busy:  # a request may be under way already
        connection.expired = False
        connection.deadline = connection.clock() + silence
    while True:
        if interlude is not None and interlude.is_busy:
            if interlude.is_stuck:
                return None
            await connection.bell.wait()
            continue
        if connection.buffer:
            end = connection.buffer.find(b"\r\n\r\n")
            if end > limits.head_bytes or (end < 0 and len(connection.buffer) > limits.head_bytes):
                raise BadRequest("too-large", f"The head is larger than {limits.head_bytes} bytes.", 431)
            if end >= 0:
                await _until_drained(connection, connection.clock() + limits.idle_seconds)
                connection.expired = False  # the deadline of the silence may have ended in the same moment
                return connection.take(end + 4)
            if not started:
                started = True
                connection.deadline = connection.clock() + limits.head_seconds
        if connection.ended or (stopping() and not started):
            return None
        if connection.expired:
            if started:
                raise BadRequest("timeout", "The request did not come in time.", 408)
            return None
        await connection.bell.wait()


async def read_body(
    connection: Connection, head: RequestHead, limits: Limits, keep: Callable[[int], None], begin: Begin
) -> bytes:
    """The whole body of a request, within the limit of what is held in memory. Raises Refusal, or Gone.

    `keep` is called with the size that is here so far, and may raise Refusal. `begin` starts long work.
    """
    body, payload = body_of(head.length), bytearray()
    if b"expect" in head.single:
        connection.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    connection.deadline = connection.clock() + limits.idle_seconds
    while not body.finished:
        if connection.buffer:
            try:
                payload += await result(_fed(body, connection.take(len(connection.buffer))), begin)
            except ValueError as error:
                raise BadRequest("bad-body", f"The request was refused: {error}.") from error
            if len(payload) > limits.held_body_bytes:
                raise BadRequest("too-large", f"The body is larger than {limits.held_body_bytes} bytes.", 413)
            keep(len(payload))
            connection.deadline = connection.clock() + limits.idle_seconds
        elif connection.ended:
            raise Gone
        elif connection.expired:
            raise BadRequest("timeout", "The rest of the request did not come in time.", 408)
        else:
            await connection.bell.wait()
    connection.stop_draining(body.rest)
    return bytes(payload)


def _fed(body: Body, data: bytes) -> Steps:
    parts = []
    for part in payloads(data, body):
        parts.append(part)
        yield
    return b"".join(parts)


async def _until_drained(connection: Connection, deadline: float) -> None:
    """Wait until the client has read its answers: it gets no more of them before."""
    connection.deadline = deadline
    while connection.choked:
        if connection.ended or connection.expired:
            raise Gone
        await connection.bell.wait()


async def linger(connection: Connection) -> None:
    """Discard what the client still sends for a moment: closing at once would destroy the answer."""
    connection.expired = False
    end = connection.clock() + _LINGER_SECONDS
    connection.deadline = connection.clock() + _QUIET_SECONDS
    thrown_away = 0

    def count(data: bytes) -> None:
        nonlocal thrown_away
        thrown_away += len(data)
        connection.deadline = min(end, connection.clock() + _QUIET_SECONDS)
        if thrown_away > _LINGER_BYTES:
            connection.abort()

    connection.drain_into(count)
    if connection.transport is not None and connection.transport.can_write_eof():
        connection.transport.write_eof()
    while not (connection.ended or connection.expired):
        await connection.bell.wait()
