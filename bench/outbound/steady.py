"""The load for reloads: numbered requests without a pause, and every answer compared with what was asked for.

`python -m bench.outbound.steady` reads one JSON order from the first line of its input, writes `ready` when
every connection has had an answer, counts right ones in a file that others can look into, and goes on until
its input ends; then it writes one JSON result. Of the `streams` that it is told to hold open, every user of
the proxy has one of each kind. The first answer that is wrong or missing ends it with 1, and so does a stream
that ends.
"""

from __future__ import annotations

import asyncio
import json
import mmap
import ssl
import struct
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvloop

from bench.outbound.load import Connection, Lane, open_up
from bench.outbound.origin import echo
from bench.outbound.streams import Stream

INSPECTED, TUNNELLED = "inspected", "tunnelled"
FORBIDDEN = 8  # of the inspected ones, every so many is for a path that the route does not allow
COUNTS = struct.Struct("=2Q")  # right answers so far, inspected and tunnelled


class Numbered(Connection):
    """Kept alive, with one request under way at any time."""

    def __init__(self, load: Load, kind: str, number: int) -> None:
        super().__init__(b"")
        self._load = load
        self._kind = kind
        self._number = number
        self._received = b""

    def ask(self) -> None:
        self._connecting = False
        self._allowed = self._kind == TUNNELLED or self._number % FORBIDDEN != 0
        self._path = f"/{'allowed' if self._allowed else 'forbidden'}/{self._number}"
        self._number += 1
        self._asked_at = time.perf_counter()
        self.transport.write(self._load.lanes[self._kind].get(self._path))

    def data_received(self, data: bytes) -> None:
        if self._connecting:
            self._take_connect_answer(data)
            return
        self._received += data
        head, end, body = self._received.partition(b"\r\n\r\n")
        if not end:
            return
        length = int(head.lower().partition(b"\r\ncontent-length: ")[2].partition(b"\r\n")[0])
        if len(body) < length:
            return
        self._received = b""
        if self._is_right(head, body):
            self._load.count(self._kind, self._allowed, time.perf_counter() - self._asked_at)
            self._go_on()
        else:
            self._fail(f"wrong answer to {self._path}: {head!r} {body[:300]!r}")

    def _is_right(self, head: bytes, body: bytes) -> bool:
        if self._allowed:
            return head.startswith(b"HTTP/1.1 200") and body == echo(self._path.encode())
        return head.startswith(b"HTTP/1.1 403") and json.loads(body)["reason"] == "path"

    def _go_on(self) -> None:
        if not self.answered.done():
            self.answered.set_result(None)
        if self._load.stopping:
            self._load.stopped(self)
        else:
            self.ask()

    def _fail(self, why: str) -> None:
        super()._fail(why)
        self._load.fail(self, f"{self._kind}: {why}")


class Load:
    def __init__(self, order: dict[str, Any]) -> None:
        self.lanes = {kind: Lane(**lane) for kind, lane in order["lanes"].items()}
        self.stopping = False
        self._connections: set[Numbered | Stream] = set()
        self._order = order
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._right = {INSPECTED: 0, TUNNELLED: 0}
        self._seen: Counter[str] = Counter()
        self._held: Counter[str] = Counter()  # streams that were still right at the very end
        self._slowest = 0.0
        with Path(order["counts"]).open("r+b") as file:
            self._shown = mmap.mmap(file.fileno(), COUNTS.size)

    async def run(self) -> dict[str, Any]:
        """Raises ConnectionError with the first thing that went wrong."""
        bundle = next(iter(self.lanes.values())).bundle
        context = ssl.create_default_context(cafile=bundle)
        context.set_alpn_protocols(["http/1.1"])
        await asyncio.gather(*(self._open(context, *each) for each in self._all()))
        asyncio.get_running_loop().add_reader(sys.stdin, self._stop)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await self._over
        return {"seen": self._seen, "slowest_ms": 1000 * self._slowest, "held": self._held}

    def _all(self) -> Iterator[tuple[Numbered | Stream, str, int]]:
        """Each with its lane, and the number of its user."""
        for kind, lane in self.lanes.items():
            for number in range(self._order["connections"]):
                yield Numbered(self, kind, 1_000_000 * number), kind, number
            for number in range(len(lane.headers)):
                for stream in self._order["streams"]:
                    yield Stream(self, kind, stream), kind, number

    async def _open(
        self, context: ssl.SSLContext, connection: Numbered | Stream, kind: str, number: int
    ) -> None:
        self._connections.add(connection)
        await open_up(connection, self.lanes[kind], context, number)
        connection.ask()
        await connection.answered

    def count(self, kind: str, allowed: bool, seconds: float) -> None:
        self._seen[f"{kind} {'allowed' if allowed else 'refused'}"] += 1
        self._slowest = max(self._slowest, seconds)
        self._right[kind] += 1
        COUNTS.pack_into(self._shown, 0, self._right[INSPECTED], self._right[TUNNELLED])

    def _stop(self) -> None:
        """Everybody still gets the answer they wait for."""
        asyncio.get_running_loop().remove_reader(sys.stdin)
        self.stopping = True

    def lived_through(self, stream: Stream, name: str) -> None:
        self._held[name] += 1
        self.stopped(stream)

    def stopped(self, connection: Numbered | Stream) -> None:
        self._connections.discard(connection)
        connection.transport.abort()
        if not self._connections and not self._over.done():
            self._over.set_result(None)

    def fail(self, connection: Numbered | Stream, why: str) -> None:
        if connection in self._connections and not self._over.done():
            self._over.set_exception(ConnectionError(why))
            self._over.exception()  # whoever waits gets it


async def main() -> int:
    load = Load(json.loads(sys.stdin.readline()))
    try:
        json.dump(await load.run(), sys.stdout)
    except ConnectionError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(uvloop.run(main()))
