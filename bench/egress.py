"""How fast is the way out? bot-bottle beside direct connections, squid and mitmproxy, in one run.

Run `.venv/bin/python bench/egress.py` (`--quick` for a smoke run, `--json FILE` to keep the numbers,
`--output FILE` for the table). `bench/install-rivals` says how to get squid and mitmproxy; without them
bot-bottle is measured alone.

Everything is on loopback and over TLS, with the same load, the same origin and the same certificates' checks:

- *c16*, *c64*: 1 KB answers over 16 and 64 kept-alive connections, one request at a time on each;
- *10 MB*: large answers over 4 kept-alive connections;
- *new*: a connection, a TLS handshake and a 1 KB answer, 16 at a time.

*tunnel* passes TLS on unread; *intercept* ends it, decides on every request by its path and method and opens
TLS to the origin. bot-bottle runs as it ships: a table of 201 routes, one record per request and all of them
read, secrets searched for in what leaves. A bottle is served by one process, and there are as many processes
as cores (at most 4), so the load's connections belong to 8 bottles in turn, as many with each process;
processor time and memory are sums over all of them and their parent. squid writes its access log. mitmproxy
runs without an addon, so it decides and records nothing. Both serve with one process, as they do unless told
otherwise. Rounds go through all of them in turn. A ratio is the median of the ratios of each round, × squid
is to squid in the same mode. The bars are ratios to squid and to mitmproxy: a rival that is not installed is
not compared. A bar that is missed once on a busy machine and met in the next run is met. Load, proxy and
origin share the machine's cores, so that × direct is far below 1 for everything. New connections are better
compared by processor time: the load's own handshakes limit how many it can open in a second. All requests
of a kind are the same, in favour of bot-bottle, which does not read and search the same bytes twice: requests
with URLs that are new each time cost it more. Congestion control is the host's.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[0] = str(ROOT)  # or this file would hide the package that has its name

from bench.outbound import subjects  # noqa: E402
from bench.outbound.certificates import TestCa  # noqa: E402
from bench.outbound.report import CROWD, LARGE, NEW, SMALL, Figures, Report  # noqa: E402

LOAD = ROOT / "bench" / "outbound" / "load.py"
ORDERS = {
    SMALL: {"path": "/small", "connections": 16},
    CROWD: {"path": "/small", "connections": 64},
    LARGE: {"path": "/large", "connections": 4},
    NEW: {"path": "/small"},
}


@dataclass(frozen=True)
class Plan:
    rounds: int
    seconds: float
    rivals: bool


# A single round is up to a quarter off on a shared machine: it takes this many for a median that stays.
FULL = Plan(rounds=15, seconds=1.0, rivals=True)
QUICK = Plan(rounds=1, seconds=0.05, rivals=False)


def measure(plan: Plan) -> Report:
    report = Report(len(os.sched_getaffinity(0)), plan.rounds, plan.seconds)
    with tempfile.TemporaryDirectory(prefix="bench-") as name, ExitStack() as running:
        folder = Path(name)
        ca = TestCa(folder, "origin")
        direct = running.enter_context(subjects.origin(folder, ca))
        lanes = _proxies(plan, folder, ca, direct.dial[1], running)
        for number in range(plan.rounds):
            # Every other round runs backwards, so that nobody always follows the same neighbour.
            proxies = lanes if number % 2 == 0 else lanes[::-1]
            _Round(plan, ca.bundle, report).go_through(direct, proxies)
            sys.stderr.write(f"round {number + 1} of {plan.rounds}\n")
    return report


def _proxies(plan: Plan, folder: Path, ca: TestCa, port: int, running: ExitStack) -> list[subjects.Subject]:
    kinds = [subjects.bot_bottle]
    if plan.rivals and subjects.has_squid():
        kinds.append(subjects.squid)
    if plan.rivals and subjects.MITMDUMP.exists():
        kinds.append(subjects.mitmproxy)
    found = []
    for mode in ("tunnel", "intercept"):
        for kind in kinds:
            own = folder / f"{mode}-{kind.__name__}"
            own.mkdir()
            found.append(running.enter_context(kind(mode, own, ca, port)))
    return found


@dataclass(frozen=True)
class _Round:
    plan: Plan
    bundle: Path
    report: Report

    def go_through(self, direct: subjects.Subject, proxies: list[subjects.Subject]) -> None:
        for what in ORDERS:
            for lane in (direct, *proxies):
                self.report.measured[lane.label][what].append(self._measure(what, lane))
        for lane in proxies:
            self.report.memory[lane.label].append(lane.megabytes())

    def _measure(self, what: str, lane: subjects.Subject) -> Figures:
        order = {**ORDERS[what], "seconds": self.plan.seconds, "lane": lane.lane(self.bundle)}
        finished = subprocess.run(
            [sys.executable, LOAD], input=json.dumps(order), env=os.environ | subjects.STEADY,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if finished.returncode != 0:
            raise SystemExit(f"{what} over {lane.label} failed:\n{finished.stderr[-3000:]}")
        return dict(json.loads(finished.stdout))


def _congestion_control() -> str:
    return Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()


def page(report: Report) -> str:
    told = (__doc__ or "").partition("\n\n")[2].partition("\n\n")[2]
    return (
        "# Egress: what the way out costs\n\n"
        f"`bench/egress.py` on {report.cores} cores, medians of {report.rounds} rounds"
        f" of {report.seconds} s each. The host's congestion control: {_congestion_control()}.\n\n"
        f"{report.markdown()}\n\n{told}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--quick", action="store_true", help="a smoke run of bot-bottle alone; measures nothing"
    )
    parser.add_argument("--rounds", type=int, help="how often everything is measured")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers there")
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="the page (docs/develop/bench-egress.md if not quick)"
    )
    asked = parser.parse_args()
    plan = QUICK if asked.quick else FULL
    if asked.rounds:
        plan = Plan(asked.rounds, plan.seconds, plan.rivals)
    report = measure(plan)
    print(report.markdown())
    if asked.json:
        asked.json.write_text(json.dumps(report.as_dict(), indent=2) + "\n")
    output = asked.output or (None if asked.quick else ROOT / "docs" / "develop" / "bench-egress.md")
    if output:
        output.write_text(page(report))
    return 0 if asked.quick or all(bar.met for bar in report.bars()) else 1


if __name__ == "__main__":
    sys.exit(main())
