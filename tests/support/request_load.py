"""A steady stream of numbered requests through a bottle's socket, each answer checked.

Half of the connections carry plain requests, the other half is inspected. Run as a program it serves the
origin too, counts in a file that others can look into, and goes on until its standard input ends; then it
prints what it saw.
"""

from __future__ import annotations

import asyncio
import json
import mmap
import socket
import ssl
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import uvloop

from tests.support import ROOT
from tests.support.origins import Origins, TestAuthority
from tests.support.server import stop

CONNECTIONS = 16
RATE = 2300.0  # asked for, so that 2,000 a second remain with a little lag
HOST, ADDRESS = "load.example.com", "127.0.0.8"
CONNECT = f"CONNECT {HOST}:443 HTTP/1.1\r\nHost: {HOST}:443\r\n\r\n".encode()
FORBIDDEN = 8  # every so many requests, one that the route does not allow
_COUNTS = struct.Struct("=3Q")


@dataclass
class Setting:
    """`pem` is what the origin proves its name with, `ca` whom the bottle trusts."""

    socket: str
    http_port: int
    tls_port: int
    pem: str
    ca: str
    counts: str
    rate: float = RATE  # 0: as fast as answers come


@dataclass
class Counts:
    """Right answers so far on both kinds of connections, and requests that were never answered."""

    plain: int
    inspected: int
    dropped: int


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
    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._trust = ssl.create_default_context(cafile=setting.ca)
        self._stop = asyncio.Event()
        self._counts = Counts(0, 0, 0)
        with Path(setting.counts).open("r+b") as file:
            self._shown = mmap.mmap(file.fileno(), _COUNTS.size)
        self.seen: Counter[str] = Counter()
        self.slowest = 0.0

    async def run(self, connections: int = CONNECTIONS) -> None:
        asyncio.get_running_loop().add_reader(sys.stdin, self._stop.set)
        await asyncio.gather(*(self._client(number, connections) for number in range(connections)))

    async def _client(self, number: int, step: int) -> None:
        started, kind = time.perf_counter(), "inspected" if number % 2 else "plain"
        reader, writer = await self._open(kind)
        while not self._stop.is_set():
            due = started + number / self._setting.rate if self._setting.rate else 0
            if (wait := due - time.perf_counter()) > 0:
                await asyncio.sleep(wait)
            sent = time.perf_counter()
            outcome = await self._ask(reader, writer, kind, number)
            self.slowest = max(self.slowest, time.perf_counter() - sent)
            self._note(kind, outcome)
            number += step
            if outcome == "dropped":
                writer.close()
                reader, writer = await self._open(kind)
        writer.close()

    async def _open(self, kind: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Tried until it is there: who counts is who was served and then was not."""
        while True:
            try:
                if kind == "plain":
                    return await asyncio.open_unix_connection(self._setting.socket)
                return await self._open_inspected()
            except (OSError, ConnectionError):
                await asyncio.sleep(0.02)

    async def _open_inspected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        loop, connection = asyncio.get_running_loop(), socket.socket(socket.AF_UNIX)
        connection.setblocking(False)
        try:
            await loop.sock_connect(connection, self._setting.socket)
            await loop.sock_sendall(connection, CONNECT)
            if not (await loop.sock_recv(connection, 1000)).startswith(b"HTTP/1.1 200"):
                raise ConnectionError
            return await asyncio.open_unix_connection(sock=connection, ssl=self._trust, server_hostname=HOST)
        except BaseException:
            connection.close()
            raise

    async def _ask(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kind: str, number: int
    ) -> str:
        allowed = number % FORBIDDEN != number // CONNECTIONS % FORBIDDEN
        path = f"/allowed/{number}" if allowed else f"/forbidden/{number}"
        start = f"http://{HOST}" if kind == "plain" else ""
        try:
            writer.write(f"GET {start}{path} HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
            body = await reader.readexactly(length)
        except (OSError, asyncio.IncompleteReadError):
            return "dropped"
        if allowed and head.startswith(b"HTTP/1.1 200") and body == path.encode():
            return "allowed"
        if not allowed and head.startswith(b"HTTP/1.1 403") and json.loads(body)["reason"] == "path":
            return "refused"
        return f"wrong: {path} {head!r} {body!r}"

    def _note(self, kind: str, outcome: str) -> None:
        self.seen[f"{kind} {outcome}"] += 1
        counts = self._counts
        if outcome == "dropped":
            counts.dropped += 1
        elif kind == "plain":
            counts.plain += 1
        else:
            counts.inspected += 1
        _COUNTS.pack_into(self._shown, 0, counts.plain, counts.inspected, counts.dropped)


async def main(setting: Setting) -> None:
    loop = asyncio.get_running_loop()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(setting.pem)
    servers = [
        await loop.create_server(Origin, ADDRESS, setting.http_port),
        await loop.create_server(Origin, ADDRESS, setting.tls_port, ssl=tls),
    ]
    load = Load(setting)
    started = time.perf_counter()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await load.run()
    seconds = time.perf_counter() - started
    for server in servers:
        server.close()
    told = {"seen": load.seen, "seconds": seconds, "slowest": load.slowest}
    sys.stdout.write(json.dumps(told) + "\n")


# --- for who wants one


class UnderWay:
    """A load in a process of its own. `seen`, `seconds` and `slowest` are there after its end."""

    def __init__(self, process: subprocess.Popen[str], counts: Path) -> None:
        self._process = process
        self._counts = counts
        self.seen: dict[str, int] = {}
        self.seconds = self.slowest = 0.0

    def counts(self) -> Counts:
        return Counts(*_COUNTS.unpack(self._counts.read_bytes()))

    def end(self) -> None:
        told: dict[str, Any] = json.loads(self._process.communicate(timeout=60)[0])
        self.seen, self.seconds, self.slowest = told["seen"], told["seconds"], told["slowest"]

    def __str__(self) -> str:
        rate = sum(self.seen.values()) / self.seconds
        return f"{rate:.0f} requests a second, the slowest {1000 * self.slowest:.0f} ms; {self.seen}"


@contextmanager
def under_way(
    bottle: Path, origins: Origins, authority: TestAuthority, *, rate: float = RATE
) -> Iterator[UnderWay]:
    """Through the socket in the bottle's directory, to a route of its own that allows `/allowed`."""
    authority.context([HOST])
    counts = bottle.parent / "load.counts"
    counts.write_bytes(bytes(_COUNTS.size))
    setting = Setting(
        str(bottle / "sockets" / "proxy.sock"), origins.http_port, origins.tls_port,
        str(authority.path.parent / f"{HOST}-30.pem"), str(bottle / "ca.pem"), str(counts), rate,
    )  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.request_load", json.dumps(asdict(setting))],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        load = UnderWay(process, counts)
        yield load
        load.end()
    finally:
        stop(process)


if __name__ == "__main__":
    uvloop.run(main(Setting(**json.loads(sys.argv[1]))))
