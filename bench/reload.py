"""Does anybody notice when tables are reloaded? 200 times under load, half of the files corrupt.

Run `.venv/bin/python bench/reload.py` (`--quick` for a smoke run, `--json FILE` to keep the numbers,
`--output FILE` for the page).

The data plane runs as in `bench/egress.py`: 8 bottles, tables of 202 routes, all records read, secrets
searched for. 32 kept-alive connections ask without a pause, half of them inspected, half tunnelled; every
answer is compared with what was asked for, and every eighth inspected request is one that must be refused.
Beside them every bottle has a download, an event stream and a WebSocket open, inspected and tunnelled: opened
before the first reload, a piece every quarter of a second (256 KB of the download), every byte compared, and
each must bring two more pieces after the last reload.

Meanwhile the bottles' tables are reloaded, one after the other without a pause: a good one, a corrupt one,
and so on, in the ten ways of `bench/outbound/damage.py`; each time the process must say which version is live
and what is wrong. Times with and without reloads take turns, equally long. A wrong answer, a lost connection,
a stream that ends or has a wrong byte, and a wrong version end the run. Exits with 1 then, and when the bar
is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[0] = str(ROOT)  # or this file's neighbours would hide packages that have their names

from bench.outbound import subjects  # noqa: E402
from bench.outbound.certificates import TestCa  # noqa: E402
from bench.outbound.damage import DAMAGES, Files  # noqa: E402
from bench.outbound.origin import STREAMS  # noqa: E402
from bench.outbound.report import Bar  # noqa: E402
from bench.outbound.steady import COUNTS, INSPECTED, TUNNELLED  # noqa: E402
from egress.contract import sharding  # noqa: E402

RATE_BAR = 2000.0
CONNECTIONS = 16  # of each kind
KINDS = {INSPECTED: subjects.HOST, TUNNELLED: subjects.BARE_HOST}


@dataclass(frozen=True)
class Plan:
    rounds: int
    reloads: int  # in each


FULL, QUICK = Plan(rounds=10, reloads=20), Plan(rounds=2, reloads=4)


class Tables:
    """Of all bottles in turn: a good one, then a corrupt one. Raises SystemExit when an ack is wrong."""

    def __init__(self, home: Path) -> None:
        self._run = home / "run"
        self._processes = int(json.loads((self._run / sharding.DISCOVERY).read_text())["processes"])
        self._bottles = sorted((home / "bottles").iterdir())
        another = home / "another"  # which nobody serves and nothing damages
        another.mkdir()
        subjects.write_table(another, subjects.MIXED, 1)
        self._files = [Files(each, another) for each in self._bottles]
        self._versions = [1] * len(self._bottles)
        self.corrupt = self.good = 0

    def reload(self) -> None:
        at = (self.good + self.corrupt) // 2 % len(self._bottles)
        if self.good > self.corrupt:
            damage, why = DAMAGES[self.corrupt % len(DAMAGES)]
            damage(self._files[at])
            self.corrupt += 1
        else:
            why = ""
            self._versions[at] += 1
            subjects.write_table(self._bottles[at], subjects.MIXED, self._versions[at])
            self.good += 1
        self._check(at, why)

    def _check(self, at: int, why: str) -> None:
        slug = self._bottles[at].name
        control = sharding.control_socket(self._run, sharding.owner(slug, self._processes))
        ack = json.loads(subjects.ask(control, f"/reload/{slug}", "POST"))
        problem = ack["problem"] or ""
        if ack["version"] != self._versions[at] or why not in problem or bool(why) != bool(problem):
            raise SystemExit(f"{slug}: version {self._versions[at]} and {why!r} expected: {ack}")


class UnderWay:
    """The load. Raises SystemExit when it has found something wrong."""

    def __init__(self, process: subprocess.Popen[str], counts: Path) -> None:
        self._process = process
        self._counts = counts

    def answers(self) -> tuple[int, int]:
        if self._process.poll() is not None:
            self.end()
        inspected, tunnelled = COUNTS.unpack(self._counts.read_bytes())
        return inspected, tunnelled

    def end(self) -> dict[str, Any]:
        told, errors = self._process.communicate(timeout=60)
        if self._process.returncode != 0:
            raise SystemExit(f"an answer was wrong, or missing: {errors[-3000:]}")
        return dict(json.loads(told))


@contextmanager
def load(lane: subjects.Subject, bundle: Path, folder: Path) -> Iterator[UnderWay]:
    counts = folder / "counts"
    counts.write_bytes(bytes(COUNTS.size))
    lanes = {kind: lane.lane(bundle, host) for kind, host in KINDS.items()}
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.outbound.steady"], cwd=ROOT, env=os.environ | subjects.STEADY,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdin is not None and process.stdout is not None
        order = {
            "lanes": lanes, "connections": CONNECTIONS, "streams": list(STREAMS), "counts": str(counts),
        }  # fmt: skip
        process.stdin.write(json.dumps(order) + "\n")
        process.stdin.flush()
        under_way = UnderWay(process, counts)
        if process.stdout.readline() != "ready\n":
            under_way.end()
        yield under_way
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


@dataclass
class Figures:
    """Rates are answers a second, one for each round."""

    cores: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))
    reloads: int = 0
    corrupt: int = 0
    with_reloads: list[float] = field(default_factory=list)
    inspected: list[float] = field(default_factory=list)  # of these
    without: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    seen: dict[str, int] = field(default_factory=dict)  # right answers, by kind
    slowest_ms: float = 0.0
    held: dict[str, int] = field(default_factory=dict)  # streams that lived through all of it, by kind

    def bar(self) -> Bar:
        """For what goes wrong there is none: it ends the run."""
        return Bar("requests a second during reloads, the slowest round", min(self.with_reloads), RATE_BAR)

    def markdown(self) -> str:
        ratio = median(a / b for a, b in zip(self.with_reloads, self.without, strict=True))
        pace = self.reloads / sum(self.seconds)
        rates = {"with reloads": self.with_reloads, "of these, inspected": self.inspected}
        rates["without reloads"] = self.without
        return "\n".join([
            "| requests a second | median of rounds | slowest round |",
            "| --- | --: | --: |",
            *(f"| {what} | {median(found):.0f} | {min(found):.0f} |" for what, found in rates.items()),
            "",
            f"With reloads against without, median of rounds: {ratio:.2f}."
            f" Slowest answer: {self.slowest_ms:.0f} ms.",
            "",
            f"- {self.reloads} reloads, {self.corrupt} of them of corrupt files, {pace:.1f} a second",
            f"- right answers: {_listed(self.seen)}",
            f"- open through all of it: {_listed(self.held)}",
            "- none was dropped, wrong or ended: the first would have ended the run",
            "",
            f"- {self.bar()}",
        ])  # fmt: skip


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))


def measure(plan: Plan) -> Figures:
    figures = Figures()
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        ca = TestCa(folder, "origin")
        with (
            subjects.origin(folder, ca) as origin,
            subjects.bot_bottle(subjects.MIXED, folder, ca, origin.dial[1]) as lane,
            load(lane, ca.bundle, folder) as under_way,
        ):
            tables = Tables(folder / "home")
            for number in range(plan.rounds):
                _one_round(plan, tables, under_way, figures)
                sys.stderr.write(f"round {number + 1} of {plan.rounds}\n")
            ended = under_way.end()
    figures.reloads, figures.corrupt = tables.good + tables.corrupt, tables.corrupt
    figures.seen, figures.held, figures.slowest_ms = ended["seen"], ended["held"], ended["slowest_ms"]
    return figures


def _one_round(plan: Plan, tables: Tables, under_way: UnderWay, figures: Figures) -> None:
    before, began = under_way.answers(), time.perf_counter()
    for _ in range(plan.reloads):
        tables.reload()
    between, elapsed = under_way.answers(), time.perf_counter() - began
    time.sleep(elapsed)  # the same load, left alone for as long
    after, quiet = under_way.answers(), time.perf_counter() - began - elapsed
    figures.seconds.append(elapsed)
    figures.with_reloads.append((sum(between) - sum(before)) / elapsed)
    figures.inspected.append((between[0] - before[0]) / elapsed)
    figures.without.append((sum(after) - sum(between)) / quiet)


def page(figures: Figures, plan: Plan) -> str:
    told = (__doc__ or "").partition("\n\n")[2].partition("\n\n")[2]
    return (
        "# Reloads: does anybody notice?\n\n"
        f"`bench/reload.py` on {figures.cores} cores, {plan.rounds} rounds"
        f" of {plan.reloads} reloads each.\n\n"
        f"{figures.markdown()}\n\n{told}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a smoke run: few reloads; measures nothing")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers there")
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="the page (docs/develop/bench-reload.md if not quick)"
    )
    asked = parser.parse_args()
    plan = QUICK if asked.quick else FULL
    figures = measure(plan)
    print(figures.markdown())
    if asked.json:
        asked.json.write_text(json.dumps(asdict(figures), indent=2) + "\n")
    output = asked.output or (None if asked.quick else ROOT / "docs" / "develop" / "bench-reload.md")
    if output:
        output.write_text(page(figures, plan))
    return 0 if asked.quick or figures.bar().met else 1


if __name__ == "__main__":
    sys.exit(main())
