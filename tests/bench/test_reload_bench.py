"""The benchmark of reloads runs to its end, and its load takes no wrong answer for a right one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.outbound.steady import COUNTS
from tests.proxy.origins import Origins, TestAuthority
from tests.servers import ROOT

pytestmark = pytest.mark.process
HOST, ADDRESS = "origin.example.com", "127.0.0.2"


def test_a_quick_run_reloads_good_and_corrupt_tables_and_loses_nothing(tmp_path: Path) -> None:
    numbers = tmp_path / "reload.json"
    finished = subprocess.run(
        [sys.executable, "bench/reload.py", "--quick", "--json", numbers],
        cwd=ROOT, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr
    measured = json.loads(numbers.read_text())
    assert (measured["reloads"], measured["corrupt"]) == (8, 4)
    assert measured["asked"] == sum(measured["seen"].values())
    assert set(measured["seen"]) == {"inspected allowed", "inspected refused", "tunnelled allowed"}
    assert all(rate > 0 for kind in ("with_reloads", "inspected", "without") for rate in measured[kind])
    assert "dropped or wrong answers: 0.00 (≤ 0.00): met" in finished.stdout


@pytest.fixture
def origins(tmp_path: Path) -> Iterator[Origins]:
    """They answer, but not with what the load asks for."""
    origins = Origins()
    origins.add(HOST, ADDRESS, TestAuthority(tmp_path).context([HOST]))
    yield origins
    origins.close()


@pytest.mark.parametrize(("kind", "path"), [("inspected", "/forbidden/0"), ("tunnelled", "/allowed/0")])
def test_a_wrong_answer_ends_the_load(origins: Origins, tmp_path: Path, kind: str, path: str) -> None:
    """One is not refused, the other one is not the answer to its question."""
    counts = tmp_path / "counts"
    counts.write_bytes(bytes(COUNTS.size))
    lane = {
        "dial": (ADDRESS, origins.tls_port), "name": HOST, "bundle": str(tmp_path / "origins-ca.pem"),
        "proxy": None, "headers": [""], "processes": [],
    }  # fmt: skip
    order = {"lanes": {kind: lane}, "connections": 1, "counts": str(counts)}
    finished = subprocess.run(
        [sys.executable, "-m", "bench.outbound.steady"], input=json.dumps(order) + "\n",
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert finished.returncode == 1, finished.stdout
    assert f"wrong answer to {path}" in finished.stderr
    assert counts.read_bytes() == bytes(COUNTS.size)
