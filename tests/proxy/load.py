"""A steady stream of numbered requests through a bottle's socket, each answer checked. Prints what it saw.

Run as a program: `python -m tests.proxy.load SOCKET PORT`; it serves the origin on PORT itself, and goes on
until its standard input ends.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter

import uvloop

CONNECTIONS = 16
RATE = 2300  # asked for, so that 2,000 a second remain with a little lag
HOST = "load.example.com"


class Origin(asyncio.Protocol):
    """Answers every request with its own target, as fast as it can."""

    def __init__(self) -> None:
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while b"\r\n\r\n" in self._buffer:
            head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
            target = head.split(b" ")[1]
            self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(target), target))  # type: ignore[attr-defined]


class Load:
    def __init__(self, socket: str) -> None:
        self._socket = socket
        self._stop = asyncio.Event()
        self.seen: Counter[str] = Counter()
        self.slowest = 0.0

    async def run(self, connections: int = CONNECTIONS) -> None:
        asyncio.get_running_loop().add_reader(sys.stdin, self._stop.set)
        await asyncio.gather(*(self._client(number, connections) for number in range(connections)))

    async def _client(self, number: int, step: int) -> None:
        reader, writer = await asyncio.open_unix_connection(self._socket)
        started = time.perf_counter()
        while not self._stop.is_set():
            due = started + number / RATE
            if (wait := due - time.perf_counter()) > 0:
                await asyncio.sleep(wait)
            sent = time.perf_counter()
            self.seen[await self._ask(reader, writer, f"/allowed/{number}")] += 1
            self.slowest = max(self.slowest, time.perf_counter() - sent)
            number += step
        writer.close()

    async def _ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> str:
        writer.write(f"GET http://{HOST}{path} HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
            body = await reader.readexactly(length)
        except (OSError, asyncio.IncompleteReadError):
            return "dropped"
        if not head.startswith(b"HTTP/1.1 200"):
            return head[9:12].decode()
        return "right" if body == path.encode() else "wrong"


async def main(socket: str, port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Origin, "127.0.0.8", port)
    load = Load(socket)
    started = time.perf_counter()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await load.run()
    seconds = time.perf_counter() - started
    server.close()
    sys.stdout.write(json.dumps({"seen": load.seen, "seconds": seconds, "slowest": load.slowest}) + "\n")


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], int(sys.argv[2])))
