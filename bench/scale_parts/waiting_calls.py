"""1,000 and 10,000 waiting calls: what they cost while nothing happens, and whether a stop answers all.

Run `.venv/bin/python bench/scale_parts/waiting_calls.py` (`--quick` for a smoke run). Each size has a fresh
bot-bottle on SQLite. Every call has its own connection and proposal. SIGTERM goes to `manage.py up`; a call
is answered when its client has read a whole answer that says `pending`, with the id of a proposal that no
other answer has.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from report import table
from subjects import BotBottle
from usage import idle_usage
from wire import Answer, Connection, Lost

BATCH = 100
FILING_SECONDS = 120.0  # for a batch: what is not filed by then is lost
STOP_SECONDS = 60.0
MOST_KILOBYTES = 50.0  # each


@dataclass(frozen=True)
class Plan:
    sizes: Sequence[int] = (1000, 10_000)
    idle_seconds: float = 10.0
    bottles: int = 100


QUICK = Plan(sizes=(4, 8), idle_seconds=0.2, bottles=2)


@dataclass(frozen=True)
class Row:
    calls: int
    kilobytes_each: float
    idle_percent: float  # of one core, of all processes
    lost_while_waiting: int
    answered_at_stop: int
    stop_seconds: float  # until the last answer
    left_behind: int  # processes, after the stop

    @property
    def met(self) -> bool:
        none_lost = self.lost_while_waiting == 0 and self.answered_at_stop == self.calls
        return none_lost and self.kilobytes_each <= MOST_KILOBYTES and self.left_behind == 0


@dataclass(frozen=True)
class Measured:
    rows: list[Row]

    def ratios(self) -> dict[str, float]:
        few, many = min(self.rows, key=_calls), max(self.rows, key=_calls)
        sizes = f"{many.calls} calls to {few.calls}"
        found = {
            f"answered at the stop, of {row.calls}": row.answered_at_stop / row.calls for row in self.rows
        }
        found[f"memory of a call to {MOST_KILOBYTES:.0f} KB, {many.calls} calls"] = (
            many.kilobytes_each / MOST_KILOBYTES
        )
        found[f"idle processor time, {sizes}"] = many.idle_percent / max(few.idle_percent, 0.01)
        return found

    def all_bars_met(self) -> bool:
        return all(row.met for row in self.rows)

    def markdown(self) -> str:
        head = ["waiting calls", "memory each", "idle CPU (of one core)", "lost", "answered at SIGTERM"]
        head += ["last answer after", "processes left", "bars"]
        lines = [
            [
                row.calls, f"{row.kilobytes_each:.1f} KB", f"{row.idle_percent:.2f} %",
                row.lost_while_waiting, f"{row.answered_at_stop} of {row.calls}", f"{row.stop_seconds:.1f} s",
                row.left_behind, "met" if row.met else "not met",
            ]
            for row in self.rows
        ]  # fmt: skip
        ratios = [f"- {what}: {ratio:.2f}" for what, ratio in self.ratios().items()]
        return "\n\n".join([table(head, lines), "\n".join(ratios)])


@dataclass(frozen=True)
class _Call:
    connection: Connection
    answer: asyncio.Future[Answer]


async def measure(plan: Plan, size: int, subject: BotBottle) -> Row:
    await _begin(subject, min(plan.bottles, size))  # what a first call loads is not the cost of one
    before = await idle_usage(subject, plan.idle_seconds / 4)
    calls = await _begin(subject, size)
    usage = await idle_usage(subject, plan.idle_seconds)
    lost = sum(call.answer.done() for call in calls)
    hosts = subject.pending()
    processes = subject.processes()
    began = time.monotonic()
    os.kill(processes[0], signal.SIGTERM)
    answers = await asyncio.gather(*(_answered(call, began + STOP_SECONDS) for call in calls))
    took = max((at - began for at, _ in answers), default=0.0)
    own = set(hosts.values())
    told = [proposal_id for _, proposal_id in answers if proposal_id in own]
    return Row(
        calls=size,
        kilobytes_each=1024 * (usage.megabytes - before.megabytes) / size,
        idle_percent=usage.cpu_percent,
        lost_while_waiting=lost,
        answered_at_stop=len(set(told)),
        stop_seconds=took,
        left_behind=await _left(processes),
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


async def _left(processes: Sequence[int]) -> int:
    """Zombies are gone: only who started them has to look."""
    left: list[int] = []
    for _ in range(100):
        left = [pid for pid in processes if _is_alive(pid)]
        if not left:
            break
        await asyncio.sleep(0.1)
    return len(left)


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def _calls(row: Row) -> int:
    return row.calls


def run(plan: Plan) -> Measured:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    rows = []
    with tempfile.TemporaryDirectory(prefix="waiting-") as directory:
        for size in plan.sizes:
            print(f"{size} waiting calls", file=sys.stderr, flush=True)
            with BotBottle.start(Path(directory) / str(size), plan.bottles) as subject:
                rows.append(asyncio.run(measure(plan, size, subject)))
    return Measured(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description="What waiting calls cost, and how a stop answers them.")
    parser.add_argument("--quick", action="store_true", help="a few calls only: shows that it runs")
    options = parser.parse_args()
    measured = run(QUICK if options.quick else Plan())
    print(measured.markdown())
    return 0 if options.quick or measured.all_bars_met() else 1


if __name__ == "__main__":
    sys.exit(main())
