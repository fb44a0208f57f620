"""How long after a decision is the waiting call answered? bot-bottle beside the obvious server, in one run.

Run `.venv/bin/python bench/wake.py` (`--quick` for a smoke run, `--json FILE` to keep the numbers).

What is measured, the same way for both:

- *decided → answered*: from the moment just before others can see the decision until the agent has read the
  last byte of its answer. For the baseline that moment is taken just before the response file is renamed into
  place; for bot-bottle it is the time in the decision's audit row, the last row that its transaction writes,
  so the commit itself still counts against it. The bars are about this column.
- *action → answered*: from the first byte of the operator's HTTP request, so the work of deciding counts too.

bot-bottle is measured with approvals, its slowest verb, through its public endpoints: a call is answered only
after the merged route table has been written and synced for the proxy. The baseline authenticates nobody,
checks nothing, syncs nothing and applies nothing, and its operator has its own process: all that favours it.
Rounds alternate between the servers and each holds calls only in its own rounds, since the baseline's polling
takes the cores that the other one would be measured on. Decisions fall at random moments on random calls.
All moments are read from the same machine's wall clock.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import resource
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from crowd import Crowd
from report import Report
from subjects import Baseline, BotBottle, Subject
from usage import idle_usage, requests_per_second


@dataclass(frozen=True)
class Plan:
    sizes: Sequence[int]
    rounds: int
    decisions: int  # of each verb, measured per round
    idle_at: int
    idle_seconds: float
    held: int
    throughput_seconds: float
    bottles: int


FULL = Plan(
    sizes=(1, 100, 1000), rounds=3, decisions=30, idle_at=1000, idle_seconds=10.0, held=3000,
    throughput_seconds=3.0, bottles=100,
)  # fmt: skip
QUICK = Plan(
    sizes=(1, 5, 20), rounds=1, decisions=3, idle_at=20, idle_seconds=0.5, held=40,
    throughput_seconds=0.3, bottles=4,
)  # fmt: skip


async def measure(plan: Plan, subjects: Sequence[Subject]) -> Report:
    report = Report(sizes=plan.sizes, idle_at=plan.idle_at, held=plan.held)
    for number in range(plan.rounds):
        for subject in subjects:
            note(f"round {number + 1} of {plan.rounds}: {subject.name}, plain requests")
            rate = await requests_per_second(subject, plan.throughput_seconds)
            report.throughput[subject.name].append(rate)
    for size in plan.sizes:
        for number in range(plan.rounds):
            for subject in subjects:
                note(f"round {number + 1} of {plan.rounds}: {subject.name}, {size} waiting")
                await measure_round(plan, subject, size, number, report)
    for subject in subjects:
        note(f"{subject.name}, {plan.held} waiting, all decided")
        crowd = Crowd(subject, "held")
        await crowd.grow(plan.held)
        report.burst[subject.name] = await crowd.decide_all()
    return report


async def measure_round(plan: Plan, subject: Subject, size: int, number: int, report: Report) -> None:
    crowd = Crowd(subject, f"r{number}-n{size}")
    await crowd.grow(size)
    if size == plan.idle_at:
        report.idle[subject.name].append(await idle_usage(subject, plan.idle_seconds))
    report.steady[subject.name, size].append(await crowd.decide_steadily(plan.decisions))
    report.leftovers[subject.name] += await crowd.decide_all()


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Latency from a decision to the answered call.")
    parser.add_argument("--quick", action="store_true", help="a few calls only: shows that it runs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers to FILE")
    options = parser.parse_args()
    plan = QUICK if options.quick else FULL
    random.seed(7)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with (
        tempfile.TemporaryDirectory(prefix="wake-") as directory,
        BotBottle.running(Path(directory) / "home", plan.bottles) as ours,
        Baseline.running(Path(directory) / "baseline") as baseline,
    ):
        report = asyncio.run(measure(plan, [ours, baseline]))
    print(report.markdown())
    if options.json:
        options.json.write_text(json.dumps(report.as_dict(), indent=2) + "\n")
    return 0 if options.quick or report.all_bars_met() else 1


if __name__ == "__main__":
    sys.exit(main())
