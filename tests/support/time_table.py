"""Prints where the time of a test run went: a table by folder, and the slowest tests.

A plugin of pytest: `-p tests.support.time_table`.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

SLOWEST = 20


class TimeTable:
    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.ended: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += report.duration
        if report.when == "teardown":
            self.ended.add(report.nodeid)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.section("where the time went")
        terminalreporter.write_line("Seconds of all workers together; a test waits more than it works.\n")
        terminalreporter.write_line(f"{'folder':<32} {'tests':>6} {'seconds':>8}")
        for folder, seconds in self._by_folder().most_common():
            tests = sum(_folder(test) == folder for test in self.ended)
            terminalreporter.write_line(f"{folder:<32} {tests:>6} {seconds:>8.1f}")
        terminalreporter.write_line(f"\n{SLOWEST} slowest tests")
        for test, seconds in self.seconds.most_common(SLOWEST):
            terminalreporter.write_line(f"{seconds:>8.1f}  {test}")

    def _by_folder(self) -> Counter[str]:
        folders: Counter[str] = Counter()
        for test, seconds in self.seconds.items():
            folders[_folder(test)] += seconds
        return folders


def _folder(test: str) -> str:
    return test.partition("::")[0].rpartition("/")[0]


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(TimeTable(), "time-table")
