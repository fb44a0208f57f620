"""One bottle floods the web process: what another bottle and an operator notice of it.

Both are measured on a quiet server first, and then during each flood, over kept-alive connections.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import quantiles

import httpx

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[0] = str(ROOT)  # or this file's neighbours would hide packages that have their names

from tests.support.floods import Kind, Setting, call, flood, post  # noqa: E402
from tests.support.server import RunningServer, running_server  # noqa: E402

BAR = 5.0  # times the quiet value
SAMPLES = 150
# The caps would end a ramp of waiting calls early.
UNLIMITED = {"SUPERVISE_MAX_PENDING": "1000000", "SUPERVISE_MAX_PER_MINUTE": "1000000"}
BEGIN_SECONDS = 3.0  # of a flood, before anything is measured
CONNECTIONS = {Kind.IDLE: 1500}
OTHER_BOTTLE, QUEUE_PAGE = "another bottle", "the queue page"


@dataclass(frozen=True)
class Row:
    flood: str
    subject: str
    quiet_p95_ms: float
    flooded_p95_ms: float

    @property
    def ratio(self) -> float:
        return self.flooded_p95_ms / self.quiet_p95_ms

    @property
    def is_met(self) -> bool:
        return self.ratio < BAR


async def measure(
    directory: Path, *, samples: int = SAMPLES, kinds: Sequence[Kind] = tuple(Kind)
) -> list[Row]:
    """The rows of the flood table, on a server of its own."""
    with running_server(directory / "home", **UNLIMITED) as server:
        hostile, modest = (server.create_bottle(slug)["token"] for slug in ("hostile", "modest"))
        requests = {
            OTHER_BOTTLE: (server.agent_port, _call(modest)),
            QUEUE_PAGE: (server.console_port, _queue(server)),
        }
        await _p95(requests, samples // 5)  # warm
        quiet = await _p95(requests, samples)
        rows = []
        for kind in kinds:
            setting = Setting(kind, server.agent_port, hostile, connections=CONNECTIONS.get(kind, 500))
            with flood(setting) as under_way:
                await asyncio.sleep(BEGIN_SECONDS)
                flooded = await _p95(requests, samples)
            sys.stderr.write(f"{kind}: {under_way.seen}\n")
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


def markdown(rows: Sequence[Row]) -> str:
    lines = [f"| flood of one bottle | p95 of | quiet | flooded | ratio (bar: below {BAR:g}) |"]
    lines.append("|---|---|---|---|---|")
    for row in rows:
        times = f"{row.quiet_p95_ms:.0f} ms | {row.flooded_p95_ms:.0f} ms"
        missed = "" if row.is_met else " missed"
        lines.append(f"| {row.flood} | {row.subject} | {times} | {row.ratio:.1f}{missed} |")
    return "\n".join(lines)


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="flood-") as directory:
        rows = asyncio.run(measure(Path(directory)))
    print(markdown(rows))
    print(json.dumps([asdict(row) | {"ratio": row.ratio} for row in rows]), file=sys.stderr)
    return 0 if all(row.is_met for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
