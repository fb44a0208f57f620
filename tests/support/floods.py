"""Floods of one hostile bottle against the web process, each as fast as its connections allow.

Run as a program it floods until its standard input ends, and then prints what it was answered.
"""

from __future__ import annotations

import asyncio
import json
import resource
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from itertools import count
from typing import Any

from tests.support import ROOT
from tests.support.server import stop

RAMP = 25  # waiting calls more …
RAMP_SECONDS = 0.25  # … after so long
WAIT_SECONDS = 5.0  # a call that waited so long gives up, and its connection asks for something else
LEAVE_SECONDS = 0.5


class Kind(StrEnum):
    CHEAP = "cheap calls"
    REFUSED = "refused asks"
    WAITING = "ramps of waiting calls"
    IDLE = "idle connections"


@dataclass(frozen=True)
class Setting:
    """Where to flood, and as whom: by port and token, or by the relay's socket and the bottle's name."""

    kind: Kind
    port: int = 0
    token: str = ""
    relay: tuple[str, str] | None = None
    connections: int = 500


def post(content: object, headers: dict[str, str], path: str = "/mcp") -> bytes:
    body = json.dumps(content).encode()
    lines = [
        f"POST {path} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json",
        f"Content-Length: {len(body)}", *(f"{name}: {value}" for name, value in headers.items()),
    ]  # fmt: skip
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def call(method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


def ask(host: str) -> dict[str, Any]:
    return call("tools/call", name="egress-block", arguments={"host": host, "justification": "flood"})


class Connection:
    """One kept-alive connection of the hostile bottle, opened again whenever it was closed."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        if setting.relay is not None:
            self.headers = {"X-Bottle-Identity": setting.relay[1]}
        else:
            self.headers = {"Authorization": f"Bearer {setting.token}"}
        self.headers["MCP-Protocol-Version"] = "2025-11-25"

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._streams is None:
            if self._setting.relay is not None:
                self._streams = await asyncio.open_unix_connection(self._setting.relay[0])
            else:
                self._streams = await asyncio.open_connection("127.0.0.1", self._setting.port)
        return self._streams

    async def send(self, content: object) -> int:
        """The status of the answer, once all of it is here."""
        reader, writer = await self.open()
        writer.write(post(content, self.headers))
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        if b"transfer-encoding: chunked" in head:
            await reader.readuntil(b"0\r\n\r\n")
        else:
            await reader.readexactly(int(head.partition(b"content-length:")[2].split(b"\r\n")[0]))
        if b"connection: close" in head:
            self.close()
        return int(head.split(b" ", 2)[1])

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    async def end(self) -> None:
        """Close, and return when that is done."""
        if self._streams is not None:
            writer = self._streams[1]
            self.close()
            with suppress(OSError):
                await writer.wait_closed()


class Flood:
    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._numbers = count()
        self.seen: Counter[str] = Counter()

    async def run(self) -> None:
        one = {Kind.IDLE: self._idle, Kind.WAITING: self._waiting}.get(self._setting.kind, self._asking)
        await asyncio.gather(*(one(number) for number in range(self._setting.connections)))

    def _content(self) -> object:
        if self._setting.kind is Kind.CHEAP:
            return call("tools/list")
        return ask("127.0.0.1")

    async def _asking(self, _: int) -> None:
        connection, content = Connection(self._setting), self._content()
        while True:
            await self._once(connection, content)

    async def _waiting(self, number: int) -> None:
        """The connections begin one after the other; a call that was answered makes room for the next."""
        connection = Connection(self._setting)
        await asyncio.sleep(number // RAMP * RAMP_SECONDS)
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(WAIT_SECONDS):
                    await self._once(connection, ask(f"flood-{next(self._numbers)}.example.com"))
            connection.close()

    async def _idle(self, number: int) -> None:
        """Every other connection begins a request and never ends it."""
        while True:
            connection = Connection(self._setting)
            try:
                reader, writer = await connection.open()
                if number % 2:
                    writer.write(b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\n")
                await reader.read()
            except OSError:
                await asyncio.sleep(LEAVE_SECONDS)
            self.seen["closed"] += 1
            connection.close()

    async def _once(self, connection: Connection, content: object) -> None:
        try:
            self.seen[str(await connection.send(content))] += 1
        except (OSError, asyncio.IncompleteReadError):
            self.seen["closed"] += 1
            connection.close()
            await asyncio.sleep(0.01)


async def main(setting: Setting) -> None:
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(sys.stdin, ended.set)
    flood = Flood(setting)
    flooding = asyncio.create_task(flood.run())
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await ended.wait()
    flooding.cancel()
    with suppress(asyncio.CancelledError):
        await flooding
    sys.stdout.write(json.dumps(flood.seen) + "\n")


# --- for who wants one


class UnderWay:
    """A flood in a process of its own. `seen` is there after its end."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.seen: dict[str, int] = {}

    def end(self) -> None:
        self.seen = json.loads(self._process.communicate(timeout=60)[0])


@contextmanager
def flood(setting: Setting) -> Iterator[UnderWay]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.floods", json.dumps(asdict(setting))],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        under_way = UnderWay(process)
        yield under_way
        under_way.end()
    finally:
        stop(process)


def open_unix(path: str) -> socket.socket:
    """A blocking connection. Raises BlockingIOError when the listener's queue is full."""
    connection = socket.socket(socket.AF_UNIX)
    connection.setblocking(False)
    connection.connect(path)
    connection.setblocking(True)
    return connection


if __name__ == "__main__":
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    given = json.loads(sys.argv[1])
    asyncio.run(main(Setting(**{**given, "kind": Kind(given["kind"])})))
