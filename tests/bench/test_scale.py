"""The benchmark of scale runs to its end. How fast it is depends on the machine and is not asserted here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from bench import scale
from bench.scale_parts import growth, waiting_calls, writers
from bench.scale_parts.part import Bar, Section
from bench.scale_parts.plot import dot_plot
from tests.support import ROOT
from tests.support.databases import require_postgres


def quick_run(directory: Path, part: str, *options: str) -> tuple[str, dict[str, Any]]:
    """What it printed, and the numbers of the part."""
    numbers = directory / "scale.json"
    finished = subprocess.run(
        [sys.executable, "bench/scale.py", "--quick", "--only", part, "--json", str(numbers), *options],
        cwd=ROOT, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr
    found: dict[str, Any] = json.loads(numbers.read_text())[part]
    return finished.stdout, found


@pytest.mark.process
@pytest.mark.parametrize(
    "database", ["SQLite", pytest.param("PostgreSQL", marks=[pytest.mark.services, pytest.mark.slow])]
)
def test_every_page_is_measured_at_every_size(tmp_path: Path, database: str) -> None:
    if database == "PostgreSQL":
        require_postgres()
    printed, measured = quick_run(tmp_path, "growth", "--database", database)
    (few, many) = measured[database].values()
    assert few.keys() == many.keys() and all(value > 0 for value in [*few.values(), *many.values()])
    assert {"queue", "history, near the end", "API: history", "session context, deep", "filing"} <= few.keys()
    assert printed.count("(bar 1.5): ") == 1
    assert all(f"| {what} |" in printed for what in few)


@pytest.mark.process
@pytest.mark.slow
def test_every_flood_is_measured_for_a_bottle_and_an_operator(tmp_path: Path) -> None:
    printed, measured = quick_run(tmp_path, "flood")
    assert len({(row["flood"], row["subject"]) for row in measured["rows"]}) == 8
    assert all(row["quiet_ms"] > 0 and row["flooded_ms"] > 0 for row in measured["rows"])
    assert printed.count("(bar 5): ") == 8


@pytest.mark.process
def test_waiting_calls_are_filed_and_all_answered_at_the_stop(tmp_path: Path) -> None:
    _, measured = quick_run(tmp_path, "waiting_calls")
    rows = [(row["calls"], row["filed"], row["lost"], row["answered"]) for row in measured["rows"]]
    assert rows == [(4, 4, 0, 4), (8, 8, 0, 8)]


@pytest.mark.process
def test_writers_are_measured_for_every_number_of_consoles(tmp_path: Path) -> None:
    printed, measured = quick_run(tmp_path, "writers")
    rows = {(row["writers"], row["consoles"]) for row in measured["rows"]}
    assert rows == {(1, 0), (2, 0), (1, 1), (2, 1)}
    assert all(row[what]["per_second"] > 0 for row in measured["rows"] for what in ("filings", "decisions"))
    assert "what an open console adds to a filing, to its cost with 0: " in printed


def test_what_open_consoles_add_is_counted_for_each() -> None:
    speed = writers.Speed(per_second=10, p50_ms=10, p99_ms=20, worst_ms=20)
    rows = [writers.Row(count, consoles, speed, speed) for consoles in (1, 21) for count in (1, 16)]
    found = [
        next(writers._bars(writers.Measured(rows, {1: 40.0, 21: cost}, looks={}))) for cost in (240.0, 242.0)
    ]
    assert [(bar.value, bar.is_met) for bar in found] == [(0.25, True), (pytest.approx(0.2525), False)]


def test_a_bar_is_met_up_to_its_limit() -> None:
    assert Bar("growth", 1.5, 1.5).is_met and not Bar("growth", 1.51, 1.5).is_met
    assert str(Bar("growth", 1.51, 1.5)).endswith("(bar 1.5): **NOT MET**")


def test_the_worst_growth_is_held_against_the_bar() -> None:
    found = {
        "1000": {"queue": 10.0, "history": 10.0, growth.MEMORY: 100.0},
        "100000": {"queue": 11.0, "history": 30.0, growth.MEMORY: 160.0},
    }
    ratio, memory = growth._bars("SQLite", found)
    assert (ratio.value, ratio.is_met, "(history)" in ratio.what) == (3.0, False, True)
    assert (memory.value, memory.is_met) == (60.0, False)
    assert "| history | 10.0 | 30.0 | 3.00 |" in growth._table("SQLite", found)


def test_a_call_that_was_not_filed_lost_or_not_answered_misses_a_bar() -> None:
    good = {"kilobytes_each": 40.0, "idle_percent": 1.0, "answered_seconds": 1.0, "stopped_seconds": 2.0}
    counts = [(10, 10, 0, 10), (10, 9, 0, 10), (10, 10, 1, 10), (10, 10, 0, 9)]
    rows = [
        waiting_calls.Row(calls=calls, filed=filed, lost=lost, answered=answered, **good)
        for calls, filed, lost, answered in counts
    ]
    assert [sum(not bar.is_met for bar in waiting_calls._bars(row)) for row in rows] == [0, 1, 1, 1]


def test_the_page_keeps_the_parts_that_were_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "PAGE", tmp_path / "scale.md")
    monkeypatch.setattr(scale, "IMAGES", tmp_path)
    for name, text in (("writers", "old writers"), ("growth", "the growth"), ("writers", "new writers")):
        scale.write_page({name: Section("A part", text, [Bar("a bar", 1, 2)], plots={"a.svg": "<svg/>"})})
    page = (tmp_path / "scale.md").read_text()
    assert [line for line in page.splitlines() if line.endswith(("growth", "writers"))] == [
        "the growth",
        "new writers",
    ]
    assert (tmp_path / "a.svg").read_text() == "<svg/>"


def test_a_plot_is_an_image_with_a_dot_for_each_value() -> None:
    image = ElementTree.fromstring(dot_plot("A & B", ["1", "2"], {"<x>": [1.0, 2.5], "y": [1, 1]}, bar=1.5))
    circles = [element for element in image if element.tag.endswith("circle")]
    assert len(circles) == 2 + 4
