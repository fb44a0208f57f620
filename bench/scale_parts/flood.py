"""One bottle floods the web process: what another bottle and an operator notice of it.

Both are measured on a quiet server first, and then during each flood, over kept-alive connections.
"""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import quantiles

import httpx

from bench.report import table
from bench.scale_parts.part import Bar, Section
from bench.scale_parts.plot import dot_plot
from tests.support.floods import Kind, Setting, call, flood, post
from tests.support.server import RunningServer, running_server

BAR = 5.0  # times the quiet value
SAMPLES, QUICK_SAMPLES = 150, 10
# The caps would end a ramp of waiting calls early.
UNLIMITED = {"SUPERVISE_MAX_PENDING": "1000000", "SUPERVISE_MAX_PER_MINUTE": "1000000"}
BEGIN_SECONDS = 3.0  # of a flood, before anything is measured
CONNECTIONS, QUICK_CONNECTIONS = 500, 20
IDLE_TIMES = 3  # connections that say nothing are cheap
OTHER_BOTTLE, QUEUE_PAGE = "another bottle", "the queue page"


ABOUT = """One bottle floods the web process, over many connections and as fast as they allow. Beside it,
another bottle and an operator ask one thing after the other, each over one connection; both do so on the
quiet server first. The server is `manage.py up` on SQLite."""


@dataclass(frozen=True)
class Row:
    flood: str
    subject: str
    quiet_ms: float
    flooded_ms: float

    @property
    def ratio(self) -> float:
        return self.flooded_ms / self.quiet_ms


def run(*, quick: bool, directory: Path) -> Section:
    rows = asyncio.run(_measure(directory, quick=quick))
    head = ["flood of one bottle", "p95 of", "quiet", "flooded", "ratio"]
    cells = [
        [
            row.flood,
            row.subject,
            *(f"{ms:.0f} ms" for ms in (row.quiet_ms, row.flooded_ms)),
            f"{row.ratio:.1f}",
        ]
        for row in rows
    ]
    return Section(
        "Floods",
        f"{ABOUT}\n\n{table(head, cells)}",
        bars=[Bar(f"{row.flood}: p95 of {row.subject} to its quiet value", row.ratio, BAR) for row in rows],
        numbers={"rows": [asdict(row) for row in rows]},
        plots={"scale-flood.svg": _plot(rows)},
    )


def _plot(rows: Sequence[Row]) -> str:
    ratios = {flood: [row.ratio for row in rows if row.flood == flood] for flood in Kind}
    title = "p95 while one bottle floods, in relation to the quiet server"
    return dot_plot(title, [OTHER_BOTTLE, QUEUE_PAGE], ratios, bar=BAR)


async def _measure(directory: Path, *, quick: bool) -> list[Row]:
    """The rows of the table, on a server of its own."""
    samples = QUICK_SAMPLES if quick else SAMPLES
    with running_server(directory / "home", **UNLIMITED) as server:
        hostile, modest = (server.create_bottle(slug)["token"] for slug in ("hostile", "modest"))
        requests = {
            OTHER_BOTTLE: (server.agent_port, _call(modest)),
            QUEUE_PAGE: (server.console_port, _queue(server)),
        }
        await _p95(requests, samples // 5)  # warm
        quiet = await _p95(requests, samples)
        rows = []
        for kind in Kind:
            connections = QUICK_CONNECTIONS if quick else CONNECTIONS
            if kind is Kind.IDLE:
                connections *= IDLE_TIMES
            with flood(Setting(kind, server.agent_port, hostile, connections=connections)) as under_way:
                await asyncio.sleep(BEGIN_SECONDS)
                flooded = await _p95(requests, samples)
            print(f"flood: {kind}: {under_way.seen}", file=sys.stderr, flush=True)
            rows += [Row(kind, subject, quiet[subject], flooded[subject]) for subject in requests]
        return rows


def _call(token: str) -> bytes:
    content = call("tools/call", name="list-egress-routes", arguments={})
    return post(content, {"Authorization": f"Bearer {token}", "MCP-Protocol-Version": "2025-11-25"})


def _queue(server: RunningServer) -> bytes:
    """The queue page, asked for by somebody who is signed in."""
    with httpx.Client(base_url=server.console_url, trust_env=False) as browser:
        form = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', browser.get("/admin/login/").text)
        assert form is not None
        fields = {"username": "operator", "password": server.password, "csrfmiddlewaretoken": form[1]}
        signed_in = browser.post("/admin/login/", data=fields, headers={"Referer": server.console_url})
        assert signed_in.status_code == 302, signed_in.text
        cookies = "; ".join(f"{name}={value}" for name, value in browser.cookies.items())
    return f"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nCookie: {cookies}\r\n\r\n".encode()


async def _p95(requests: dict[str, tuple[int, bytes]], samples: int) -> dict[str, float]:
    """In milliseconds. Both ask at the same time, one request after the other."""
    found = await asyncio.gather(*(_times(port, content, samples) for port, content in requests.values()))
    return {
        subject: 1000 * quantiles(times, n=20)[-1] for subject, times in zip(requests, found, strict=True)
    }


async def _times(port: int, content: bytes, samples: int) -> list[float]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    times = []
    for _ in range(samples):
        began = time.perf_counter()
        writer.write(content)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        if not head.startswith(b"http/1.1 200"):
            raise SystemExit(f"A measured request was refused: {head!r}")
        await reader.readexactly(int(head.partition(b"content-length:")[2].split(b"\r\n")[0]))
        times.append(time.perf_counter() - began)
        await asyncio.sleep(0.01)
    writer.close()
    return times
