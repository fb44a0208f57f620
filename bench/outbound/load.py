"""The load: one process that asks over TLS, straight or through a proxy, and counts whole, right answers.

`load.py` reads one JSON order from its input and writes one JSON result. Processor time of the proxy is read
here, at both ends of the measured window, so that connecting does not count as asking.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop

_OK = b"HTTP/1.1 200"
_NEW_AT_ONCE = 16
_PATIENCE = 30.0


@dataclass(frozen=True)
class Lane:
    """`proxy` is None for the direct way. `dial` is what a CONNECT, or a connection, is opened to.

    `headers` go with a CONNECT: those of one user of the proxy, or of several who take turns.
    """

    dial: tuple[str, int]
    name: str
    bundle: str
    proxy: tuple[str, int] | None
    headers: list[str]
    processes: list[int]

    def connect_head(self, number: int) -> bytes:
        authority, headers = f"{self.dial[0]}:{self.dial[1]}", self.headers[number % len(self.headers)]
        return f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n{headers}\r\n".encode()

    def get(self, path: str) -> bytes:
        host = self.name if self.dial[1] == 443 else f"{self.name}:{self.dial[1]}"
        fields = f"Host: {host}\r\nAccept: */*\r\nUser-Agent: load/1\r\n"
        return f"GET {path} HTTP/1.1\r\n{fields}\r\n".encode()

    def cpu_seconds(self) -> float:
        ticks = 0
        for process in self.processes:
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])  # utime, stime
        return ticks / os.sysconf("SC_CLK_TCK")


class Connection(asyncio.Protocol):
    """Asks the same again and again, or once."""

    def __init__(self, request: bytes) -> None:
        loop = asyncio.get_running_loop()
        self.opened: asyncio.Future[None] = loop.create_future()  # the answer to CONNECT
        self.answered: asyncio.Future[None] = loop.create_future()  # the first answer; a failure at any time
        self.answers = self.bytes = 0
        self.again = False
        self._connecting = True
        self._request = request
        self._head = b""
        self._start = b""
        self._length = self._missing = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        if self._connecting:
            self._take_connect_answer(data)
            return
        if not self._missing:
            data = self._take_head(self._start + data)
            if not self._missing:
                return
        self._missing -= len(data)
        self.bytes += len(data)
        if self._missing == 0:
            self._count()
        elif self._missing < 0:
            self._fail("an answer is longer than it said")

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(f"the connection was lost: {exc!r}")

    def ask(self) -> None:
        self._connecting = False
        self.transport.write(self._request)

    def _take_connect_answer(self, data: bytes) -> None:
        self._start += data
        if not self._start.endswith(b"\r\n\r\n"):
            return
        if self._start.split()[1:2] != [b"200"]:
            self._fail(f"CONNECT was refused: {self._start[:200]!r}")
        elif not self.opened.done():
            self.opened.set_result(None)
        self._start = b""

    def _take_head(self, data: bytes) -> bytes:
        """What follows the head, which is most often the same as the last one."""
        if self._head and data.startswith(self._head):
            self._start, self._missing = b"", self._length
            return data[len(self._head) :]
        head, end, rest = data.partition(b"\r\n\r\n")
        if not end:
            self._start = data
            return b""
        if not head.startswith(_OK):
            self._fail(f"the answer is {data[:300]!r}")
            return b""
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        self._head, self._start = head + end, b""
        self._length = self._missing = int(fields[b"content-length"])
        return rest

    def _count(self) -> None:
        self.answers += 1
        if not self.answered.done():
            self.answered.set_result(None)
        if self.again:
            self.transport.write(self._request)

    def _fail(self, why: str) -> None:
        self.again = False
        for future in (self.opened, self.answered):
            if not future.done():
                future.set_exception(ConnectionError(why))
                future.exception()  # whoever waits gets it; nobody has to


async def open_connection(lane: Lane, context: ssl.SSLContext, request: bytes, number: int) -> Connection:
    connection = Connection(request)
    await open_up(connection, lane, context, number)
    return connection


async def open_up(connection: Connection, lane: Lane, context: ssl.SSLContext, number: int) -> None:
    loop = asyncio.get_running_loop()
    host, port = lane.proxy or lane.dial
    if lane.proxy is None:
        await loop.create_connection(lambda: connection, host, port, ssl=context, server_hostname=lane.name)
        return
    transport, _ = await loop.create_connection(lambda: connection, host, port)
    transport.write(lane.connect_head(number))
    await connection.opened
    secured = await loop.start_tls(transport, connection, context, server_hostname=lane.name)
    assert secured is not None
    connection.transport = secured


async def keep_asking(lane: Lane, context: ssl.SSLContext, order: dict[str, Any]) -> dict[str, float]:
    """Kept-alive connections, each with one request under way at any time."""
    request = lane.get(order["path"])
    opening = (open_connection(lane, context, request, number) for number in range(order["connections"]))
    connections = await asyncio.gather(*opening)
    for connection in connections:
        connection.again = True
        connection.ask()
    await asyncio.gather(*(connection.answered for connection in connections))
    before, cpu, began = _sums(connections), lane.cpu_seconds(), time.perf_counter()
    await asyncio.sleep(order["seconds"])
    while _sums(connections)[0] == before[0]:
        await asyncio.sleep(order["seconds"])
    elapsed, cpu, after = time.perf_counter() - began, lane.cpu_seconds() - cpu, _sums(connections)
    if not all(connection.again for connection in connections):
        raise ConnectionError("a connection failed while it was measured")
    for connection in connections:
        connection.again = False
        connection.transport.abort()
    return _figures(after[0] - before[0], after[1] - before[1], elapsed, cpu)


async def keep_connecting(lane: Lane, context: ssl.SSLContext, order: dict[str, Any]) -> dict[str, float]:
    """A new connection for every request."""
    request, done, received = lane.get(order["path"]), 0, 0
    stop = time.perf_counter() + order["seconds"]

    async def one_after_another(number: int) -> None:
        nonlocal done, received
        while not done or time.perf_counter() < stop:
            connection = await open_connection(lane, context, request, number)
            connection.ask()
            await connection.answered
            connection.transport.abort()
            done += 1
            received += connection.bytes

    cpu, began = lane.cpu_seconds(), time.perf_counter()
    await asyncio.gather(*(one_after_another(number) for number in range(_NEW_AT_ONCE)))
    return _figures(done, received, time.perf_counter() - began, lane.cpu_seconds() - cpu)


def _sums(connections: list[Connection]) -> tuple[int, int]:
    return sum(each.answers for each in connections), sum(each.bytes for each in connections)


def _figures(answers: int, received: int, elapsed: float, cpu: float) -> dict[str, float]:
    return {
        "per_second": answers / elapsed,
        "megabytes_per_second": received / elapsed / 1e6,
        "cpu_us": cpu / max(answers, 1) * 1e6,
    }


async def carry_out(order: dict[str, Any]) -> dict[str, float]:
    lane = Lane(**order["lane"])
    context = ssl.create_default_context(cafile=lane.bundle)
    context.set_alpn_protocols(["http/1.1"])
    work = keep_asking if order.get("connections") else keep_connecting
    async with asyncio.timeout(order["seconds"] + _PATIENCE):
        return await work(lane, context, order)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        json.dump(runner.run(carry_out(json.load(sys.stdin))), sys.stdout)
