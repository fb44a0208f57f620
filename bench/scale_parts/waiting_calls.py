"""1,000 and 10,000 waiting calls: what they cost while nothing happens, and whether a stop answers all.

Every call has its own connection and its own proposal. SIGTERM goes to `manage.py up`; a call is answered
when its client has read a whole answer that says `pending`, with the id of a proposal that no other answer
has.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.report import table
from bench.scale_parts.part import Bar, Section
from bench.subjects import BotBottle
from bench.usage import idle_usage
from bench.wire import Answer, Connection, Lost
from tests.support.server import is_running

BATCH = 100
FILING_SECONDS = 120.0  # for a batch: what is not filed by then is lost
PATIENCE = 60.0  # after the stop
MOST_KILOBYTES = 50.0  # each
MOST_STOP_SECONDS = 5.0
ABOUT = """Each size has a `manage.py up` of its own on SQLite. Each call has a connection and a proposal of
its own, and comes from one of a hundred bottles. When all wait and a while has passed, `up` gets SIGTERM.
What counts is an answer that says `pending` with the id of a proposal that no other answer names."""


@dataclass(frozen=True)
class Plan:
    sizes: Sequence[int]
    idle_seconds: float
    bottles: int


FULL = Plan(sizes=(1000, 10_000), idle_seconds=10.0, bottles=100)
QUICK = Plan(sizes=(4, 8), idle_seconds=0.2, bottles=2)


@dataclass(frozen=True)
class Row:
    calls: int
    filed: int
    kilobytes_each: float
    idle_percent: float  # of one core, of all processes
    lost: int  # while they waited
    answered: int  # at the stop
    answered_seconds: float  # from SIGTERM to the last answer
    stopped_seconds: float  # from SIGTERM to the end of the last process


def run(*, quick: bool, directory: Path) -> Section:
    plan = QUICK if quick else FULL
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    rows = []
    for size in plan.sizes:
        print(f"waiting calls: {size:,}", file=sys.stderr, flush=True)
        with BotBottle.start(directory / str(size), plan.bottles) as subject:
            rows.append(asyncio.run(_measure(plan, size, subject)))
    return Section(
        "Waiting calls",
        f"{ABOUT}\n\n{_table(rows)}",
        bars=[bar for row in rows for bar in _bars(row)],
        numbers={"rows": [asdict(row) for row in rows]},
    )


def _table(rows: Sequence[Row]) -> str:
    head = ["waiting calls", "filed", "memory each", "idle CPU (of one core)", "lost"]
    head += ["answered at SIGTERM", "last answer after", "last process gone after"]
    return table(head, map(_cells, rows))


def _cells(row: Row) -> list[object]:
    costs = [f"{row.kilobytes_each:.1f} KB", f"{row.idle_percent:.1f} %"]
    times = [f"{seconds:.2f} s" for seconds in (row.answered_seconds, row.stopped_seconds)]
    return [f"{row.calls:,}", f"{row.filed:,}", *costs, row.lost, f"{row.answered:,}", *times]


def _bars(row: Row) -> Iterator[Bar]:
    calls = f"{row.calls:,} calls"
    yield Bar(f"{calls}: not filed, or lost while they waited", row.calls - row.filed + row.lost, 0)
    yield Bar(f"{calls}: not answered at SIGTERM", row.calls - row.answered, 0)
    yield Bar(f"{calls}: KB of memory each", row.kilobytes_each, MOST_KILOBYTES)
    yield Bar(f"{calls}: seconds from SIGTERM to the last process", row.stopped_seconds, MOST_STOP_SECONDS)


@dataclass(frozen=True)
class _Call:
    connection: Connection
    answer: asyncio.Future[Answer]


async def _measure(plan: Plan, size: int, subject: BotBottle) -> Row:
    warm = await _begin(subject, min(plan.bottles, size))  # what a first call loads is not the cost of one
    before = await idle_usage(subject, plan.idle_seconds / 4)
    calls = await _begin(subject, size)
    usage = await idle_usage(subject, plan.idle_seconds)
    lost = sum(call.answer.done() for call in calls)
    own = set(subject.pending().values())
    processes = subject.processes()
    began = time.monotonic()
    os.kill(processes[0], signal.SIGTERM)
    stopped = asyncio.create_task(_gone(processes, began + PATIENCE))
    answers = await asyncio.gather(*(_answered(call, began + PATIENCE) for call in calls))
    told = {proposal_id for _, proposal_id in answers} & own
    for call in warm:
        call.connection.close()
    return Row(
        calls=size,
        filed=len(own) - len(warm),
        kilobytes_each=1024 * (usage.megabytes - before.megabytes) / size,
        idle_percent=usage.cpu_percent,
        lost=lost,
        answered=len(told),
        answered_seconds=max((at - began for at, _ in answers), default=0.0),
        stopped_seconds=await stopped - began,
    )


async def _begin(subject: BotBottle, size: int) -> list[_Call]:
    """So many calls that wait. Returns when each has its proposal."""
    calls: list[_Call] = []
    known = subject.pending_count()
    while len(calls) < size:
        for _ in range(min(BATCH, size - len(calls))):
            connection = await Connection.open(subject.agent_port)
            asked = subject.ask(f"h{known + len(calls)}.example.com")
            calls.append(_Call(connection, connection.send(asked)))
        deadline = time.monotonic() + FILING_SECONDS
        while subject.pending_count() < known + len(calls) and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
    return calls


async def _answered(call: _Call, deadline: float) -> tuple[float, str]:
    """When the whole answer was here, and the proposal that it says is still pending."""
    try:
        async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
            told = (await call.answer).json()["result"]["structuredContent"]
    except (TimeoutError, Lost, KeyError, ValueError):
        return time.monotonic(), ""
    finally:
        call.connection.close()
    return time.monotonic(), told["proposal_id"] if told["status"] == "pending" else ""


async def _gone(processes: Sequence[int], deadline: float) -> float:
    """When none of them was left, or the deadline."""
    while any(map(is_running, processes)) and time.monotonic() < deadline:
        await asyncio.sleep(0.02)
    return time.monotonic()
