"""The benchmark of the data plane runs to its end. What it measures on a busy machine is not judged here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, object], str]:
    """What a smoke run printed, its numbers and its page."""
    folder: Path = tmp_path_factory.mktemp("bench")
    command = [
        sys.executable,
        "bench/egress.py",
        "--quick",
        "--json",
        folder / "n.json",
        "--output",
        folder / "p.md",
    ]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout, json.loads((folder / "n.json").read_text()), (folder / "p.md").read_text()


def test_it_measures_every_way_and_size(run) -> None:
    measured = run[1]["measured"]
    assert set(measured) == {"direct", "tunnel, bot-bottle", "intercept, bot-bottle"}
    for found in measured.values():
        assert set(found) == {"c16", "c64", "10 MB", "new"}
        assert all(figures["per_second"] > 0 for rounds in found.values() for figures in rounds)


def test_without_a_rival_nothing_is_judged(run) -> None:
    assert run[1]["bars"] == []


def test_its_page_holds_the_table_and_how_it_was_made(run) -> None:
    assert run[0].strip() in run[2]
    assert "Rounds go through all of them" in run[2]
