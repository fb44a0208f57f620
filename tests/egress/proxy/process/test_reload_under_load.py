"""Many reloads, half of them of files that are no good, under full load: nobody notices."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.outbound.damage import DAMAGES, Files
from tests.support import request_load as load
from tests.support.origins import big
from tests.support.proxy_harness import Client, Harness, eventually, get, pinned, running_lab

pytestmark = pytest.mark.process
RELOADS = 40  # each kind of damage more than once
BETWEEN = 5  # answers of each kind, at least, from one reload to the next
SIZE = 20_000_000
EXPECTED = b"".join(big(SIZE))
HOSTS = ["api.example.com", "bare.example.com"]  # inspected, and tunnelled
ROUTES: list[dict[str, Any]] = [
    pinned("api.example.com", dlp={"out": False, "in": True}),
    pinned("bare.example.com"),
]
WEBSOCKET = (
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Harness]:
    with running_lab(tmp_path / "h", EGRESS_STOP_SECONDS="0.5") as lab:
        lab.publish("agent-a", routes("first"))
        yield lab


def routes(latest: str) -> list[dict[str, Any]]:
    """The load's own route changes every time, in a part that the load does not use."""
    paths = ["/allowed", f"/only/{latest}"]
    return [{"host": load.HOST, "path_allowlist": paths, "pinned_addresses": [load.ADDRESS]}, *ROUTES]


class Download:
    """Read a little at a time, so that it is under way all the time, and compared to its last byte."""

    def __init__(self, lab: Harness, host: str) -> None:
        self._client = lab.secured(host)
        self._client.send(get(f"/big/{SIZE}", host))
        while self._client.line():
            pass
        self._read = 0

    def goes_on(self, count: int = SIZE) -> bool:
        count = min(count, SIZE - self._read)
        received = self._client.take(count)
        self._client.received.clear()
        self._read += count
        return received == EXPECTED[self._read - count : self._read]


class Stream:
    """Of numbered events, none of which may be missing."""

    def __init__(self, lab: Harness, host: str) -> None:
        self._client = lab.secured(host)
        self._client.send(get("/events", host))
        while self._client.line():
            pass
        self._origin = lab.requests[-1]
        self._read = b""

    def goes_on(self) -> bool:
        """Up to an event that the origin had not sent when this was called."""
        expected = b"".join(b"data: %d\n\n" % number for number in range(self._origin.sent + 1))
        while len(self._read) < len(expected):
            self._read += self._client.event()
        return self._read.startswith(expected)


def open_websocket(lab: Harness, host: str) -> Client:
    client = lab.secured(host)
    assert client.ask(get("/websocket", host, *WEBSOCKET)).status == 101
    return client


class Table:
    """Reloads the table, good and bad in turn, and looks at what is live through a connection of its own."""

    def __init__(self, lab: Harness) -> None:
        self._lab = lab
        self._files = Files(lab.home / "bottles" / "agent-a", another=lab.home / "bottles" / "agent-b")
        self._client = lab.secured(load.HOST)
        self._version, self._live, self._before = 0, "first", "never"

    def reload(self, number: int) -> None:
        if number % 2:
            damage, why = DAMAGES[number // 2 % len(DAMAGES)]
            damage(self._files)
            ack = self._lab.control("POST", "/reload/agent-a")
            assert (ack["version"], why in str(ack["problem"])) == (self._version, True), ack
        else:
            self._before, self._live = self._live, str(number)
            self._version = self._lab.publish("agent-a", routes(self._live))

    def is_live(self) -> bool:
        """Also for what is remembered of requests with these headers."""
        answers = [self._client.ask(get(f"/only/{each}", load.HOST)) for each in (self._live, self._before)]
        return [answer.status for answer in answers] == [200, 403]


def test_nothing_is_dropped_or_wrong(lab: Harness, record_property: Callable[[str, object], None]) -> None:
    streams = [Stream(lab, host) for host in HOSTS]
    downloads = [Download(lab, host) for host in HOSTS]
    websockets = [open_websocket(lab, host) for host in HOSTS]
    bottle = lab.home / "bottles" / "agent-a"
    with load.under_way(bottle, lab.origins, lab.authority) as under_way:
        table, before = Table(lab), under_way.counts()
        for number in range(RELOADS):
            table.reload(number)
            assert table.is_live()
            assert all(download.goes_on(SIZE // RELOADS // 2) for download in downloads)
            eventually(lambda before=before: grown(before, under_way.counts()), "answers in between")
            before = under_way.counts()

    record_property("load", str(under_way))
    sys.stdout.write(f"{under_way}\n")
    kinds = {f"{kind} {outcome}" for kind in ("plain", "inspected") for outcome in ("allowed", "refused")}
    assert set(under_way.seen) == kinds, under_way
    for stream in streams:
        assert stream.goes_on()
    for websocket in websockets:
        websocket.send(b"\x81\x0astill here")
        assert websocket.take(12) == b"\x81\x0astill here"
    assert all(download.goes_on() for download in downloads)
    assert "Traceback" not in lab.log()


def grown(before: load.Counts, after: load.Counts) -> bool:
    return after.plain - before.plain >= BETWEEN and after.inspected - before.inspected >= BETWEEN
