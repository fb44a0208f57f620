"""The benchmark of scale runs to its end. How fast it is depends on the machine and is not asserted here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench.scale_parts import growth
from bench.scale_parts.part import Bar
from bench.scale_parts.plot import dot_plot
from tests.support import ROOT


@pytest.mark.process
def test_a_quick_run_measures_every_page_at_every_size(tmp_path: Path) -> None:
    numbers = tmp_path / "scale.json"
    finished = subprocess.run(
        [sys.executable, "bench/scale.py", "--quick", "--only", "growth", "--json", str(numbers)],
        cwd=ROOT, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr
    measured = json.loads(numbers.read_text())["growth"]
    (few, many) = measured["SQLite"].values()
    assert few.keys() == many.keys() and all(value > 0 for value in [*few.values(), *many.values()])
    assert {"queue", "history, near the end", "API: history", "session context, deep", "filing"} <= few.keys()
    assert finished.stdout.count("(bar 1.5): ") == 1
    assert all(f"| {what} |" in finished.stdout for what in few)


def test_a_bar_is_met_up_to_its_limit() -> None:
    assert Bar("growth", 1.5, 1.5).is_met and not Bar("growth", 1.51, 1.5).is_met


def test_the_worst_growth_is_held_against_the_bar() -> None:
    found = {
        "1000": {"queue": 10.0, "history": 10.0, growth.MEMORY: 100.0},
        "100000": {"queue": 11.0, "history": 30.0, growth.MEMORY: 160.0},
    }
    ratio, memory = growth._bars("SQLite", found)
    assert (ratio.value, ratio.is_met, "(history)" in ratio.what) == (3.0, False, True)
    assert (memory.value, memory.is_met) == (60.0, False)
    assert "| history | 10.0 | 30.0 | 3.00 |" in growth._table("SQLite", found)


def test_a_plot_is_an_image_with_a_dot_for_each_value() -> None:
    image = ElementTree.fromstring(dot_plot("A & B", ["1", "2"], {"<x>": [1.0, 2.5], "y": [1, 1]}, bar=1.5))
    circles = [element for element in image if element.tag.endswith("circle")]
    assert len(circles) == 2 + 4
