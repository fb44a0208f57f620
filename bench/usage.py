"""What a server costs: processor time and memory of all its processes, and plain requests a second."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass
from pathlib import Path

from bench.subjects import Subject
from bench.wire import Connection

SETTLE_SECONDS = 2.0
CONNECTIONS = 8


@dataclass(frozen=True)
class Usage:
    cpu_percent: float  # of one core
    megabytes: float
    threads: int


async def idle_usage(subject: Subject, seconds: float) -> Usage:
    """While nothing happens but waiting."""
    await asyncio.sleep(min(SETTLE_SECONDS, seconds))
    before, began = cpu_seconds(subject), time.monotonic()
    await asyncio.sleep(seconds)
    used = cpu_seconds(subject) - before
    cpu_percent = 100 * used / (time.monotonic() - began)
    kilobytes = sum(_status(pid, "VmRSS") for pid in subject.processes())
    threads = sum(_status(pid, "Threads") for pid in subject.processes())
    return Usage(cpu_percent, kilobytes / 1024, threads)


async def requests_per_second(subject: Subject, seconds: float) -> float:
    """`tools/list` over a few kept-alive connections."""
    began = time.monotonic()
    counts = await asyncio.gather(*(_list_tools(subject, began + seconds) for _ in range(CONNECTIONS)))
    return sum(counts) / (time.monotonic() - began)


async def _list_tools(subject: Subject, until: float) -> int:
    connection = await Connection.open(subject.agent_port)
    asked = subject.list_tools()
    count = 0
    while time.monotonic() < until:
        answer = await connection.send(asked)
        if answer.status != 200:
            raise SystemExit(f"{subject.name} refused tools/list: {answer.body[:500]!r}")
        count += 1
    connection.close()
    return count


def cpu_seconds(subject: Subject) -> float:
    ticks = 0
    for pid in subject.processes():
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])  # utime, stime
    return ticks / os.sysconf("SC_CLK_TCK")


def _status(pid: int, name: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0])
    raise KeyError(name)
