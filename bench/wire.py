"""As little HTTP/1.1 as the measuring client needs: it shares two cores with the servers it measures."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from typing import Any

NO_HEADERS: Mapping[str, str] = {}
END_OF_HEADERS = b"\r\n\r\n"
END_OF_CHUNKS = b"\r\n0\r\n\r\n"  # JSON and event streams never contain these bytes


class Lost(Exception):
    """The connection ended, or the time ran out, before the whole answer was here."""


class Answer:
    """A complete HTTP answer and the wall-clock moment at which its last byte was read."""

    def __init__(self, raw: bytes, read_at: float) -> None:
        head, _, self.body = raw.partition(END_OF_HEADERS)
        self.status = int(head.split(b" ", 2)[1])
        self.read_at = read_at
        if b"transfer-encoding: chunked" in head.lower():
            self.body = _joined_chunks(self.body)

    def json(self) -> Any:
        """The JSON value, or the one in the last event of an event stream."""
        text = self.body.decode().strip()
        return json.loads(text.rpartition("data: ")[2])


class Connection(asyncio.Protocol):
    """One kept-alive connection, one request at a time."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._length: int | None = None  # of the whole answer, once known
        self._answer: asyncio.Future[Answer] | None = None
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def open(cls, port: int) -> Connection:
        _, connection = await asyncio.get_running_loop().create_connection(cls, "127.0.0.1", port)
        return connection

    def send(self, request: bytes) -> asyncio.Future[Answer]:
        self._answer = asyncio.get_running_loop().create_future()
        self._received.clear()
        self._length = None
        if self._transport is None or self._transport.is_closing():
            self._answer.set_exception(Lost("closed"))
        else:
            self._transport.write(request)
        return self._answer

    def close(self) -> None:
        if self._answer is not None:
            self._answer.cancel()
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._answer is not None and not self._answer.done() and self._complete():
            self._answer.set_result(Answer(bytes(self._received), time.time()))

    def connection_lost(self, error: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(Lost("closed"))

    def _complete(self) -> bool:
        if self._received.endswith(END_OF_CHUNKS):
            return True
        if self._length is None:
            head, found, _ = self._received.partition(END_OF_HEADERS)
            _, announced, rest = bytes(head).lower().partition(b"content-length:")
            if found and announced:
                self._length = len(head) + len(found) + int(rest.partition(b"\r\n")[0])
        return self._length is not None and len(self._received) >= self._length


def request(method: str, path: str, content: object = None, headers: Mapping[str, str] = NO_HEADERS) -> bytes:
    body = b"" if content is None else json.dumps(content).encode()
    lines = [
        f"{method} {path} HTTP/1.1",
        "Host: 127.0.0.1",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    return "\r\n".join(lines).encode() + END_OF_HEADERS + body


def _joined_chunks(rest: bytes) -> bytes:
    body = bytearray()
    while True:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size, 16)
        if length == 0:
            return bytes(body)
        body += rest[:length]
        rest = rest[length + 2 :]
