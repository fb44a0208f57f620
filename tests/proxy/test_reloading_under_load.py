"""Two hundred reloads, half of them of corrupt files, under full load: nobody notices."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.proxy.lab import Client, Lab, get, pinned, running_lab
from tests.proxy.test_reloading import events, next_event
from tests.servers import ROOT

pytestmark = pytest.mark.process
RELOADS = 200
ROUTES: list[dict[str, Any]] = [
    {"host": "load.example.com", "path_allowlist": ["/allowed"], "pinned_addresses": ["127.0.0.8"]},
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
def lab(tmp_path: Path) -> Any:
    with running_lab(tmp_path / "h", EGRESS_STOP_SECONDS="0.5") as lab:
        lab.publish("agent-a", ROUTES)
        yield lab


def test_nothing_is_dropped_or_wrong(lab: Lab) -> None:
    streams = [events(lab, "api.example.com"), events(lab, "bare.example.com")]
    download, websocket = open_download(lab), open_websocket(lab)
    load = start_load(lab)
    problems = reload_many_times(lab, seconds=6)
    seen = stop_load(load)

    assert problems == RELOADS // 2
    assert set(seen["seen"]) == {"right"}, seen
    assert seen["seen"]["right"] >= 10 * RELOADS, seen  # how many a second, the machine says
    for stream in streams:
        next_event(stream)
    websocket.send(b"still here")
    assert websocket.take(10) == b"still here"
    assert len(download.take(1_000_000)) == 1_000_000
    assert "Traceback" not in lab.log()


def reload_many_times(lab: Lab, *, seconds: float) -> int:
    """How many reloads reported a problem. Good tables differ in a route that nobody uses."""
    path = lab.home / "bottles" / "agent-a" / "routes.yaml"
    problems = 0
    for number in range(RELOADS):
        until = time.monotonic() + seconds / RELOADS
        if number % 2:
            good = path.read_text()
            path.write_text(good[: len(good) // 2])
        else:
            lab.write("agent-a", [*ROUTES, pinned("other.example.com", path_allowlist=[f"/{number}"])])
        problems += lab.control("POST", "/reload/agent-a")["problem"] is not None
        time.sleep(max(0, until - time.monotonic()))
    return problems


def open_download(lab: Lab) -> Client:
    client = lab.secured("api.example.com")
    client.send(get("/big/50000000", "api.example.com"))
    while client.line():
        pass
    return client


def open_websocket(lab: Lab) -> Client:
    client = lab.secured("api.example.com")
    assert client.ask(get("/websocket", "api.example.com", *WEBSOCKET)).status == 101
    return client


def start_load(lab: Lab) -> subprocess.Popen[str]:
    socket = lab.home / "bottles" / "agent-a" / "sockets" / "proxy.sock"
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.proxy.load", str(socket), str(lab.origins.http_port)],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def stop_load(process: subprocess.Popen[str]) -> Any:
    output, _ = process.communicate(timeout=30)
    return json.loads(output)
