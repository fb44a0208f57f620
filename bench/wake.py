"""How long after a decision is the waiting call answered? bot-bottle beside the obvious server, in one run.

Run `.venv/bin/python bench/wake.py` (`--quick` for a smoke run, `--json FILE` to keep the numbers).

What is measured, the same way for both:

- *decided → answered*: from the moment just before others can see the decision until the agent has read the
  last byte of its answer. For the baseline that is just before the response file is renamed into place; for
  bot-bottle, just before the decision's transaction is committed, as noted by a database backend of this
  directory's own. For rejections the bars are about this column.
- *once in force*: the part of it after the commit that says that the decision is in force. For approvals the
  bars are about this column: until then the call is held on purpose, while the new table is made live.
- *action → answered*: from the first byte of the operator's HTTP request, so the work of deciding counts too.

A rejection is what the baseline does: a decision that is only told. An approval is more: bot-bottle answers
it when the merged route table is written and the proxy serves it. The baseline authenticates
nobody, checks, syncs and applies nothing, and its operator has its own process: all that favours it.
Rounds alternate between the servers, each on a fresh one and alone, since the baseline's polling takes the
cores that the other would be measured on. Decisions fall at random moments on random calls. All moments are
read from the same machine's wall clock.
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
from itertools import product
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[0] = str(ROOT)  # or this file's neighbours would hide packages that have their names

from bench.crowd import Crowd  # noqa: E402
from bench.report import Report  # noqa: E402
from bench.subjects import Baseline, BotBottle, Subject  # noqa: E402
from bench.usage import idle_usage, requests_per_second  # noqa: E402

KINDS: Sequence[type[BotBottle | Baseline]] = (BotBottle, Baseline)


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
    sizes=(1, 100, 1000), rounds=3, decisions=20, idle_at=1000, idle_seconds=10.0, held=3000,
    throughput_seconds=3.0, bottles=100,
)  # fmt: skip
QUICK = Plan(
    sizes=(4,), rounds=1, decisions=2, idle_at=4, idle_seconds=0.2, held=8,
    throughput_seconds=0.1, bottles=2,
)  # fmt: skip


async def measure(plan: Plan, directory: Path) -> Report:
    report = Report(sizes=plan.sizes, idle_at=plan.idle_at, held=plan.held)
    for size, number, kind in product(plan.sizes, range(plan.rounds), KINDS):
        note(f"{size} waiting, round {number + 1} of {plan.rounds}: {kind.name}")
        with kind.start(directory / f"{size}-{number}-{kind.name}", plan.bottles) as subject:
            await measure_round(plan, subject, size, report)
    for kind in KINDS:
        note(f"{plan.held} waiting, all decided: {kind.name}")
        with kind.start(directory / f"held-{kind.name}", plan.bottles) as subject:
            crowd = Crowd(subject, "held")
            await crowd.grow(plan.held)
            report.burst[subject.name] = await crowd.decide_all()
            report.lost_before_deciding[subject.name] += crowd.lost_before_deciding
    return report


async def measure_round(plan: Plan, subject: Subject, size: int, report: Report) -> None:
    if size == min(plan.sizes):
        report.throughput[subject.name].append(await requests_per_second(subject, plan.throughput_seconds))
    crowd = Crowd(subject, f"n{size}")
    await crowd.grow(size)
    if size == plan.idle_at:
        report.idle[subject.name].append(await idle_usage(subject, plan.idle_seconds))
    report.steady[subject.name, size].append(await crowd.decide_steadily(plan.decisions))
    report.lost_before_deciding[subject.name] += crowd.lost_before_deciding
    crowd.leave()


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
    with tempfile.TemporaryDirectory(prefix="wake-") as directory:
        report = asyncio.run(measure(plan, Path(directory)))
    print(report.markdown())
    if options.json:
        options.json.write_text(json.dumps(report.as_dict(), indent=2) + "\n")
    return 0 if options.quick or report.all_bars_met() else 1


if __name__ == "__main__":
    sys.exit(main())
