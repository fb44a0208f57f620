"""The parts of the scale benchmark run to their end. What they measure is not judged here."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support import ROOT

pytestmark = pytest.mark.process


def said(part: str) -> str:
    finished = subprocess.run(
        [sys.executable, f"bench/scale_parts/{part}.py", "--quick"],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def test_writers_are_measured_for_every_number_of_consoles() -> None:
    table = said("writers")
    for row in ("| 1 | 0 |", "| 2 | 0 |", "| 1 | 1 |", "| 2 | 1 |"):
        assert row in table
    assert "cost of a filing, 1 open consoles to 0" in table


def test_waiting_calls_are_all_answered_at_the_stop() -> None:
    table = said("waiting_calls")
    assert "4 of 4" in table and "8 of 8" in table
