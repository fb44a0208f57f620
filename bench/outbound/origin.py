"""The origin that everything is measured against: fixed answers over TLS, as fast as one process can.

`origin.py PEM PORT`: `/small` is 1 KB, `/large` is 10 MB, what is below `/allowed/` is told back, in 1 KB.
"""

from __future__ import annotations

import asyncio
import ssl
import sys

import uvloop

SMALL, LARGE = 1024, 10 * 1024 * 1024
_PIECE = bytes(256 * 1024)


def _head(length: int) -> bytes:
    return f"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\n\r\n".encode()


_SMALL_ANSWER = _head(SMALL) + b"x" * SMALL


def echo(target: bytes) -> bytes:
    return target.ljust(SMALL, b".")


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
        else:
            self._transport.write(_SMALL_ANSWER)
        self._asked = b""

    def _send(self) -> None:
        while self._missing and not self._paused:
            piece = _PIECE[: self._missing]
            self._missing -= len(piece)
            self._transport.write(piece)

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
