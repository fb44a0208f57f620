"""The benchmark runs from end to end. How fast it is depends on the machine and is not asserted here."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from tests.support import ROOT

pytestmark = pytest.mark.process


def test_a_quick_run_answers_every_call_and_prints_its_tables(tmp_path: Path) -> None:
    numbers = tmp_path / "wake.json"
    finished = subprocess.run(
        [sys.executable, "bench/wake.py", "--quick", "--json", str(numbers)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    measured = json.loads(numbers.read_text())
    assert measured["lost"]["bot-bottle"] == 0
    assert {(row["server"], row["waiting"], row["verb"]) for row in measured["latency_ms"]} == set(
        product(("bot-bottle", "baseline"), (4,), ("approve", "reject"))
    )
    assert all(row["decisions"] == 2 and row["decided_p50"] > 0 for row in measured["latency_ms"])
    assert finished.stdout.count("| bot-bottle, approve |") == 1
    assert finished.stdout.count("| bot-bottle |") == 2
    assert (
        finished.stdout.count("bar met") + finished.stdout.count("bar not met") == len(measured["bars"]) + 1
    )
