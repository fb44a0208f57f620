"""Filings and decisions per second, with several writers at a time and with several open consoles.

A filing is a call whose client takes a task for an answer, so that it ends when the proposal is committed. A
decision is what an operator's script does: look at the proposal, then decide it, by turns yes and no.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from statistics import median

from bench.report import percentile, table
from bench.scale_parts.consoles import Console, open_consoles
from bench.scale_parts.part import Bar, Section
from bench.scale_parts.plot import dot_plot
from bench.subjects import BotBottle, Verb
from bench.usage import cpu_seconds
from bench.wire import Connection

NUMBERS = count()
MOST_ADDED = 0.25  # each open page has to ask once; the answer is computed once for all
MOST_SPREAD = 5.0  # writers take turns: none waits for many times as long as another
MOST_LOSS = 1.0  # many writers together do not write less than one alone
ABOUT = """One `manage.py up` on SQLite serves all rows. They are measured in turn, in several rounds, and
each column is the median of its rounds. A filing ends when its proposal is committed; a decision is the
second of two requests, after the look at the proposal. The cost of a filing is the processor time of all
processes for one filing on an otherwise idle server, until all open pages have taken it in."""


@dataclass(frozen=True)
class Plan:
    writers: Sequence[int] = (1, 8, 16)
    consoles: Sequence[int] = (1, 20)
    rounds: int = 3
    seconds: float = 4.0  # of filings, in each round of each row
    decisions: int = 96  # in each round of each row
    filings: int = 5  # whose cost is measured, in each round for each number of consoles
    bottles: int = 32


FULL = Plan()
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


def run(*, quick: bool, directory: Path) -> Section:
    plan = QUICK if quick else FULL
    with BotBottle.start(directory / "home", plan.bottles) as subject:
        measured = asyncio.run(_measure(plan, subject))
    return Section(
        "Writers",
        "\n\n".join([ABOUT, _speed_table(measured.rows), _cost_table(measured)]),
        bars=list(_bars(measured)),
        numbers={"rows": [asdict(row) for row in measured.rows], "cost_ms": measured.cost_ms},
        plots={"scale-writers.svg": _plot(measured.rows)},
    )


def _plot(rows: Sequence[Row]) -> str:
    """The rates of several writers in relation to those of the first."""
    rates: dict[str, list[float]] = {}
    for row in rows:
        for what, speed in (("filings", row.filings), ("decisions", row.decisions)):
            rates.setdefault(f"{what}, {row.consoles} open consoles", []).append(speed.per_second)
    ratios = {what: [rate / found[0] for rate in found] for what, found in rates.items()}
    writers = dict.fromkeys(f"{row.writers} writers" for row in rows)
    title = "Filings and decisions per second by the number of writers, in relation to the first"
    return dot_plot(title, list(writers), ratios, bar=1.0)


def _speed_table(rows: Sequence[Row]) -> str:
    head = ["writers", "open consoles", "filings/s", "p50", "p99", "worst"]
    head += ["decisions/s", "p50", "p99", "worst"]
    return table(
        head, [[row.writers, row.consoles, *_cells(row.filings), *_cells(row.decisions)] for row in rows]
    )


def _cost_table(measured: Measured) -> str:
    rows = [
        [consoles, f"{cost:.0f} ms", f"{measured.looks[consoles]:.1f}"]
        for consoles, cost in measured.cost_ms.items()
    ]
    return table(["open consoles", "processor time of one filing", "looks that follow"], rows)


def _bars(measured: Measured) -> Iterator[Bar]:
    few, many = min(measured.cost_ms), max(measured.cost_ms)
    costs = measured.cost_ms
    added = (costs[many] - costs[few]) / (many - few)
    yield Bar(
        f"what an open console adds to a filing, to its cost with {few}", added / costs[few], MOST_ADDED
    )
    for consoles in costs:
        rows = {row.writers: row for row in measured.rows if row.consoles == consoles}
        one, most = rows[min(rows)], rows[max(rows)]
        for what in ("filings", "decisions"):
            alone, together = getattr(one, what), getattr(most, what)
            yield Bar(
                f"p99 to p50 of {what}, {most.writers} writers, {consoles} open consoles",
                together.p99_ms / together.p50_ms, MOST_SPREAD,
            )  # fmt: skip
            yield Bar(
                f"{what} per second, {one.writers} writer to {most.writers}, {consoles} open consoles",
                alone.per_second / together.per_second, MOST_LOSS,
            )  # fmt: skip


async def _measure(plan: Plan, subject: BotBottle) -> Measured:
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
