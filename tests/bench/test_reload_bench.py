"""The benchmark of reloads runs to its end, and its load takes nothing wrong for right."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.outbound.origin import DOWNLOAD, EVENTS, STREAMS, WEBSOCKET, message, piece
from bench.outbound.steady import COUNTS
from bench.outbound.subjects import BOTTLES
from tests.support import ROOT
from tests.support.origins import ANSWERS, Origins, Seen, Send, TestAuthority

pytestmark = pytest.mark.process
HOST, ADDRESS = "origin.example.com", "127.0.0.2"


def test_a_quick_run_reloads_good_and_corrupt_tables_and_loses_nothing(tmp_path: Path) -> None:
    numbers, page = tmp_path / "reload.json", tmp_path / "reload.md"
    finished = subprocess.run(
        [sys.executable, "bench/reload.py", "--quick", "--json", numbers, "--output", page],
        cwd=ROOT, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr
    measured = json.loads(numbers.read_text())
    assert (measured["reloads"], measured["corrupt"]) == (8, 4)
    assert set(measured["seen"]) == {"inspected allowed", "inspected refused", "tunnelled allowed"}
    assert all(rate > 0 for kind in ("with_reloads", "inspected", "without") for rate in measured[kind])
    kinds = {f"{way} {kind}" for way in ("inspected", "tunnelled") for kind in STREAMS}
    assert measured["held"] == dict.fromkeys(kinds, BOTTLES)
    assert finished.stdout.count("): ") == 1, "what ends the run needs no bar"
    assert finished.stdout.strip() in page.read_text()


@pytest.fixture
def origins(tmp_path: Path) -> Iterator[Origins]:
    """They answer, but not with what the load asks for."""
    origins = Origins()
    origins.add(HOST, ADDRESS, TestAuthority(tmp_path).context([HOST]))
    yield origins
    origins.close()


def load(origins: Origins, tmp_path: Path, **order: object) -> subprocess.CompletedProcess[str]:
    """What became of a load that nothing but something wrong can end."""
    counts = tmp_path / "counts"
    counts.write_bytes(bytes(COUNTS.size))
    lane = {
        "dial": (ADDRESS, origins.tls_port), "name": HOST, "bundle": str(tmp_path / "origins-ca.pem"),
        "proxy": None, "headers": [""], "processes": [],
    }  # fmt: skip
    whole = {"lanes": {order.pop("kind"): lane}, "counts": str(counts), **order}
    with subprocess.Popen(
        [sys.executable, "-m", "bench.outbound.steady"], cwd=ROOT, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdin and process.stdout and process.stderr
        process.stdin.write(json.dumps(whole) + "\n")
        process.stdin.flush()
        try:
            process.wait(60)
        finally:
            process.kill()
        told, errors = process.stdout.read(), process.stderr.read()
    assert counts.read_bytes() == bytes(COUNTS.size)
    return subprocess.CompletedProcess(process.args, process.returncode, told, errors)


@pytest.mark.parametrize(("kind", "path"), [("inspected", "/forbidden/0"), ("tunnelled", "/allowed/0")])
def test_a_wrong_answer_ends_the_load(origins: Origins, tmp_path: Path, kind: str, path: str) -> None:
    """One is not refused, the other one is not the answer to its question."""
    ended = load(origins, tmp_path, kind=kind, connections=1, streams=[])
    assert ended.returncode == 1, ended.stdout
    assert f"wrong answer to {path}" in ended.stderr


HEADS = {
    DOWNLOAD: b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n",
    EVENTS: b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n",
    WEBSOCKET: b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
}


ENDS = {"ends": (b"", "the connection was lost"), "changes": (b"data: other", "wrong after 2 pieces")}


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("kind", STREAMS)
def test_a_stream_that_ends_or_goes_wrong_ends_the_load(
    origins: Origins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, how: str
) -> None:
    """After two pieces that are right."""
    last, told = ENDS[how]

    async def answer(_: Seen, send: Send) -> bool:
        pieces = [piece(kind, 0), piece(kind, 1)]
        await send(HEADS[kind] + b"".join(map(message, pieces) if kind == WEBSOCKET else pieces) + last)
        return False

    monkeypatch.setitem(ANSWERS, "streams", answer)
    ended = load(origins, tmp_path, kind="inspected", connections=0, streams=[kind])
    assert (ended.returncode, ended.stdout) == (1, "ready\n"), ended.stderr
    assert f"inspected {kind}: {told}" in ended.stderr
