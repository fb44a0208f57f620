"""Filings and decisions per second, with several writers at a time and with several open consoles.

Run `.venv/bin/python bench/scale_parts/writers.py` (`--quick` for a smoke run). One bot-bottle on SQLite
serves all rows; rows are measured in turn, in several rounds, and each column is the median of its rounds. A
filing is a call whose client takes a task for an answer, so that it ends when the proposal is committed. A
decision is what an operator's script does: look at the proposal, then decide it, by turns yes and no; the
times are those of the second request alone. The cost of a filing is the processor time of all processes for
one filing on an otherwise idle server, until all open pages have taken it in.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from report import percentile, table
from subjects import BotBottle, Verb
from usage import cpu_seconds
from wire import Connection

from scale_parts.consoles import Console, open_consoles

NUMBERS = count()


@dataclass(frozen=True)
class Plan:
    writers: Sequence[int] = (1, 8, 16)
    consoles: Sequence[int] = (1, 20)
    rounds: int = 3
    seconds: float = 4.0  # of filings, in each round of each row
    decisions: int = 96  # in each round of each row
    filings: int = 5  # whose cost is measured, in each round for each number of consoles
    bottles: int = 32


QUICK = Plan(writers=(1, 2), consoles=(0, 1), rounds=1, seconds=0.2, decisions=4, filings=1, bottles=2)


@dataclass(frozen=True)
class Speed:
    per_second: float
    p50_ms: float
    p99_ms: float
    worst_ms: float

    @classmethod
    def of(cls, seconds: Sequence[float], took: float) -> Speed:
        ordered = [1000 * each for each in seconds]
        return cls(
            len(ordered) / took, percentile(ordered, 50), percentile(ordered, 99), max(ordered, default=0)
        )


@dataclass(frozen=True)
class Row:
    writers: int
    consoles: int
    filings: Speed
    decisions: Speed


@dataclass(frozen=True)
class Measured:
    rows: list[Row]
    cost_ms: dict[int, float]  # of one filing, by open consoles
    looks: dict[int, float]  # that follow it

    def ratios(self) -> dict[str, float]:
        """What the bars are about: how much more it costs with many."""
        few, many = min(self.cost_ms), max(self.cost_ms)
        found = {f"cost of a filing, {many} open consoles to {few}": self.cost_ms[many] / self.cost_ms[few]}
        for consoles in self.cost_ms:
            rows = {row.writers: row for row in self.rows if row.consoles == consoles}
            one, most = rows[min(rows)], rows[max(rows)]
            with_them = f"{most.writers} writers to {one.writers}, {consoles} consoles"
            for what in ("filings", "decisions"):
                speeds = getattr(most, what), getattr(one, what)
                found[f"{what} per second, {with_them}"] = speeds[0].per_second / speeds[1].per_second
                found[f"p99 of {what} to p50, {most.writers} writers, {consoles} consoles"] = (
                    speeds[0].p99_ms / speeds[0].p50_ms
                )
        return found

    def markdown(self) -> str:
        head = ["writers", "open consoles", "filings/s", "p50", "p99", "worst"]
        head += ["decisions/s", "p50", "p99", "worst"]
        lines = [
            [row.writers, row.consoles, *_cells(row.filings), *_cells(row.decisions)] for row in self.rows
        ]
        costs = [
            [consoles, f"{cost:.0f} ms", f"{self.looks[consoles]:.1f}"]
            for consoles, cost in self.cost_ms.items()
        ]
        ratios = [f"- {what}: {ratio:.2f}" for what, ratio in self.ratios().items()]
        cost_head = ["open consoles", "processor time of one filing", "looks that follow"]
        return "\n\n".join([table(head, lines), table(cost_head, costs), "\n".join(ratios)])


async def measure(plan: Plan, subject: BotBottle) -> Measured:
    speeds: dict[tuple[int, int], list[tuple[Speed, Speed]]] = {}
    costs: dict[int, list[tuple[float, float]]] = {consoles: [] for consoles in plan.consoles}
    for _ in range(plan.rounds):
        for consoles in plan.consoles:
            async with open_consoles(subject, consoles) as pages:
                for writers in plan.writers:
                    note(f"{writers} writers, {consoles} open consoles")
                    found = await _filings(subject, plan, writers), await _decisions(subject, plan, writers)
                    speeds.setdefault((writers, consoles), []).append(found)
                    await _until_quiet(pages)
                costs[consoles].append(await _cost_of_a_filing(subject, plan, pages))
    rows = [
        Row(*key, _median(filings for filings, _ in found), _median(decisions for _, decisions in found))
        for key, found in speeds.items()
    ]
    cost_ms = {consoles: 1000 * median(cost for cost, _ in found) for consoles, found in costs.items()}
    looks = {consoles: median(look for _, look in found) for consoles, found in costs.items()}
    return Measured(rows, cost_ms, looks)


async def _filings(subject: BotBottle, plan: Plan, writers: int) -> Speed:
    until = time.monotonic() + plan.seconds

    async def file(connection: Connection) -> list[float]:
        took = []
        while time.monotonic() < until:
            took.append(await _file(subject, connection))
        return took

    return await _together(file, subject.agent_port, writers)


async def _file(subject: BotBottle, connection: Connection) -> float:
    filing = subject.file(f"h{next(NUMBERS)}.example.com")
    began = time.monotonic()
    answer = await connection.send(filing)
    took = time.monotonic() - began
    if answer.status != 200 or "error" in answer.json():
        raise SystemExit(f"a filing was refused: {answer.status} {answer.body[:300]!r}")
    return took


async def _decisions(subject: BotBottle, plan: Plan, writers: int) -> Speed:
    left = list(subject.pending().values())[: plan.decisions]

    async def decide(connection: Connection) -> list[float]:
        took = []
        while left:
            verb = (Verb.APPROVE, Verb.REJECT)[len(left) % 2]
            decide_it = await subject.look(connection, left.pop(), verb)
            began = time.monotonic()
            answer = await connection.send(decide_it)
            took.append(time.monotonic() - began)
            if answer.status != 200:
                raise SystemExit(f"a decision was refused: {answer.status} {answer.body[:300]!r}")
        return took

    return await _together(decide, subject.operator_port, writers)


async def _together(deed: Callable[[Connection], Awaitable[list[float]]], port: int, writers: int) -> Speed:
    connections = [await Connection.open(port) for _ in range(writers)]
    began = time.monotonic()
    took = await asyncio.gather(*map(deed, connections))
    lasted = time.monotonic() - began
    for connection in connections:
        connection.close()
    return Speed.of([each for found in took for each in found], lasted)


async def _cost_of_a_filing(subject: BotBottle, plan: Plan, pages: Sequence[Console]) -> tuple[float, float]:
    """Processor seconds and looks, for each of some filings with pauses between them."""
    connection = await Connection.open(subject.agent_port)
    await _until_quiet(pages)
    idle_before, began = cpu_seconds(subject), time.monotonic()
    await asyncio.sleep(1.0)
    idle = (cpu_seconds(subject) - idle_before) / (time.monotonic() - began)
    looks_before = sum(page.looks for page in pages)
    before, began = cpu_seconds(subject), time.monotonic()
    for _ in range(plan.filings):
        await _file(subject, connection)
        await asyncio.sleep(0.3)
        await _until_quiet(pages)
    used = cpu_seconds(subject) - before - idle * (time.monotonic() - began)
    connection.close()
    return used / plan.filings, (sum(page.looks for page in pages) - looks_before) / plan.filings


async def _until_quiet(pages: Sequence[Console]) -> None:
    while not all(page.is_quiet for page in pages):
        await asyncio.sleep(0.05)


def _median(speeds: Iterable[Speed]) -> Speed:
    found = list(speeds)
    names = ("per_second", "p50_ms", "p99_ms", "worst_ms")
    return Speed(*(median(getattr(speed, name) for speed in found) for name in names))


def _cells(speed: Speed) -> list[str]:
    times = (speed.p50_ms, speed.p99_ms, speed.worst_ms)
    return [f"{speed.per_second:.0f}", *(f"{each:.0f} ms" for each in times)]


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def run(plan: Plan) -> Measured:
    with (
        tempfile.TemporaryDirectory(prefix="writers-") as directory,
        BotBottle.start(Path(directory) / "home", plan.bottles) as subject,
    ):
        return asyncio.run(measure(plan, subject))


def main() -> int:
    parser = argparse.ArgumentParser(description="Filings and decisions per second.")
    parser.add_argument("--quick", action="store_true", help="a few only: shows that it runs")
    print(run(QUICK if parser.parse_args().quick else Plan()).markdown())
    return 0


if __name__ == "__main__":
    sys.exit(main())
