"""The origin that everything is measured against: fixed answers over TLS, as fast as one process can.

`origin.py PEM PORT`: `/small` is 1 KB, `/large` is 10 MB, what is below `/allowed/` is told back, in 1 KB.
What is below `/streams/` has no end: a download and events, both in numbered pieces, and a WebSocket that
tells back what it is told.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import ssl
import sys

import uvloop

SMALL, LARGE = 1024, 10 * 1024 * 1024
_PIECE = bytes(256 * 1024)
DOWNLOAD, EVENTS, WEBSOCKET = "download", "events", "websocket"
STREAMS = {DOWNLOAD: 256 * 1024, EVENTS: 100, WEBSOCKET: 100}  # how large a piece is
PACE = 0.25  # seconds from one to the next: none waits in a buffer, and the load hardly feels them
_FILLING = hashlib.shake_128().hexdigest(128 * 1024).encode()
_NO_END = 1 << 50
_MASKED = 6  # bytes before what a masked message says


def _head(length: int) -> bytes:
    return f"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\n\r\n".encode()


_SMALL_ANSWER = _head(SMALL) + b"x" * SMALL


_EVENTS_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def _switching(key: bytes) -> bytes:
    accept = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
    return (
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Accept: " + accept + b"\r\n\r\n"
    )


def echo(target: bytes) -> bytes:
    return target.ljust(SMALL, b".")


def piece(kind: str, number: int) -> bytes:
    """No two are alike, nor are two parts of one."""
    return (f"data: {kind} {number} ".encode() + _FILLING)[: STREAMS[kind] - 2] + b"\n\n"


def message(said: bytes, *, masked: bool = False) -> bytes:
    """A WebSocket frame. Clients have to mask; with zeros it can still be read."""
    return bytes([0x81, len(said) | (0x80 if masked else 0)]) + (bytes(4) if masked else b"") + said


class Messages(asyncio.Protocol):
    """A WebSocket on which all messages have the same size."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._received = b""

    def data_received(self, data: bytes) -> None:
        self._received += data
        size = _MASKED + STREAMS[WEBSOCKET]
        while len(self._received) >= size:
            self._transport.write(message(self._received[_MASKED:size]))
            self._received = self._received[size:]


class Answers(asyncio.Protocol):
    """One request at a time, which is how the load asks."""

    def __init__(self) -> None:
        self._asked = b""
        self._missing = 0
        self._paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self._asked += data
        if not self._asked.endswith(b"\r\n\r\n"):
            return
        if self._asked.startswith(b"GET /large"):
            self._transport.write(_head(LARGE))
            self._missing = LARGE
            self._send()
        elif self._asked.startswith(b"GET /allowed/"):
            self._transport.write(_head(SMALL) + echo(self._asked.split(b" ", 2)[1]))
        elif self._asked.startswith(b"GET /streams/"):
            self._open_stream(self._asked.split(b" ", 2)[1].decode().removeprefix("/streams/"))
        else:
            self._transport.write(_SMALL_ANSWER)
        self._asked = b""

    def _open_stream(self, kind: str) -> None:
        if kind == WEBSOCKET:
            key = self._asked.lower().index(b"\r\nsec-websocket-key: ") + len("\r\nsec-websocket-key: ")
            self._transport.write(_switching(self._asked[key:].partition(b"\r\n")[0]))
            self._transport.set_protocol(Messages(self._transport))
            return
        self._transport.write(_EVENTS_HEAD if kind == EVENTS else _head(_NO_END))
        self._send_pieces(kind, 0)

    def _send_pieces(self, kind: str, number: int) -> None:
        if self._transport.is_closing():
            return
        data = piece(kind, number)
        self._transport.write(b"%x\r\n%b\r\n" % (len(data), data) if kind == EVENTS else data)
        asyncio.get_running_loop().call_later(PACE, self._send_pieces, kind, number + 1)

    def _send(self) -> None:
        while self._missing and not self._paused:
            part = _PIECE[: self._missing]
            self._missing -= len(part)
            self._transport.write(part)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._send()


async def main(pem: str, port: str) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    context.set_alpn_protocols(["http/1.1"])
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Answers, "127.0.0.1", int(port), ssl=context, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(*sys.argv[1:]))
