"""The benchmark of starting a bottle runs to its end. How fast it is depends on the machine: not asserted."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys

import pytest

from tests.support import ROOT
from tests.support.requirements import require

pytestmark = pytest.mark.process


def test_it_measures_both_ways_and_judges_both_bars() -> None:
    require(shutil.which("bwrap"), "bubblewrap", "apt-get install bubblewrap")
    finished = subprocess.run(
        [sys.executable, "bench/launch.py", "--runs", "2"],
        cwd=ROOT, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    said = finished.stdout
    assert "bottle run" in said and "bare bwrap" in said, finished.stderr
    assert "supervisor" in said and "init" in said
    assert said.count("bar met") + said.count("bar not met") == 2
    assert finished.returncode == ("bar not met" in said)


def test_make_bench_runs_every_benchmark_that_the_readme_names() -> None:
    target = (ROOT / "Makefile").read_text().partition("\nbench:")[2]
    parts = target.partition("for part in ")[2].partition(";")[0].split()
    assert set(parts) == set(re.findall(r"python bench/(\w+)\.py", (ROOT / "README.md").read_text()))
