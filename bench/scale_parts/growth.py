"""What pages, calls, filings and decisions cost while history grows: real servers, asked the same in turn.

One home for each size, filled in bulk, with a `manage.py up` of its own. All are asked the same things in
turn, again and again, so that whatever else the machine does falls on all of them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.scale_parts.part import Bar, Section
from bench.scale_parts.plot import dot_plot

ROOT = Path(__file__).resolve().parents[2]
RATIO_BAR, MEMORY_BAR = 1.5, 50.0
LEAST = 5.0  # milliseconds: what takes less counts as much, since so little varies by itself
MEMORY = "memory of the web process"
ABOUT = """Twelve bottles, 24 pending proposals, and so many decided ones, filled in bulk with audit rows and
tables. Each size has a home and a `manage.py up` of its own; all are asked the same things in turn, and the
fastest counts. Filings and decisions are made in the measuring process, the rest is asked over HTTP."""
KEPT_VARIABLES = ("PATH", "LANG", "VIRTUAL_ENV")


@dataclass(frozen=True)
class Plan:
    sizes: Mapping[str, Sequence[int]]  # by database
    samples: int


FULL = Plan({"SQLite": (1_000, 100_000, 1_000_000), "PostgreSQL": (1_000, 100_000)}, samples=20)
QUICK = Plan(dict.fromkeys(FULL.sizes, (100, 300)), samples=2)
DATABASES = tuple(FULL.sizes)


def run(*, quick: bool, directory: Path, database: str | None = None) -> Section:
    """On both databases, or on this one alone."""
    plan = QUICK if quick else FULL
    numbers = {
        each: _measure(each, plan.sizes[each], plan.samples, directory / each.lower())
        for each in ([database] if database else DATABASES)
    }
    return section_of(numbers)


def section_of(numbers: dict[str, Found]) -> Section:
    tables = "\n\n".join(_table(database, found) for database, found in numbers.items())
    text = f"{ABOUT}\n\n{tables}"
    return Section(
        "Growth of history",
        text,
        bars=[bar for database, found in numbers.items() for bar in _bars(database, found)],
        numbers=numbers,
        plots={f"scale-growth-{name.lower()}.svg": _plot(name, found) for name, found in numbers.items()},
    )


# --- Reporting. `found` is {size: {what: milliseconds, or megabytes}}.

Found = dict[str, dict[str, float]]


def _table(database: str, found: Found) -> str:
    sizes = list(found)
    lines = [
        f"**{database}**, decided proposals:\n",
        f"| ms | {' | '.join(f'{int(size):,}' for size in sizes)} | last to first |",
        f"|---|{'--:|' * (len(sizes) + 1)}",
    ]
    for what in found[sizes[0]]:
        values = [found[size][what] for size in sizes]
        end = f"+{values[-1] - values[0]:.0f} MB" if what == MEMORY else f"{values[-1] / values[0]:.2f}"
        lines.append(f"| {what} | {' | '.join(f'{value:.1f}' for value in values)} | {end} |")
    return "\n".join(lines)


def _bars(database: str, found: Found) -> Iterator[Bar]:
    first, last = found[next(iter(found))], found[list(found)[-1]]
    ratios = {what: max(last[what], LEAST) / max(first[what], LEAST) for what in first if what != MEMORY}
    worst = max(ratios, key=lambda what: ratios[what])
    yield Bar(f"{database}: what grows most ({worst}), last size to first", ratios[worst], RATIO_BAR)
    yield Bar(f"{database}: {MEMORY}, MB more", last[MEMORY] - first[MEMORY], MEMORY_BAR)


def _plot(database: str, found: Found) -> str:
    sizes = list(found)
    first = found[sizes[0]]
    rows = {what: [found[size][what] / first[what] for size in sizes] for what in first}
    title = f"{database}: cost by the number of decided proposals, in relation to the first"
    return dot_plot(title, [f"{int(size):,}" for size in sizes], rows, bar=RATIO_BAR)


# --- Measuring


def _measure(database: str, sizes: Sequence[int], samples: int, directory: Path) -> Found:
    with ExitStack() as stack:
        urls = stack.enter_context(_databases(database, len(sizes), directory))
        subjects = [
            stack.enter_context(_Subject(directory / str(size), size, url))
            for size, url in zip(sizes, urls, strict=True)
        ]
        taken = _in_turn(subjects, samples)
        memory = [subject.ask(MEMORY) for subject in subjects]
    return {
        str(size): {what: min(found) for what, found in times.items()} | {MEMORY: megabytes}
        for size, times, megabytes in zip(sizes, taken, memory, strict=True)
    }


def _in_turn(subjects: Sequence[_Subject], samples: int) -> list[dict[str, list[float]]]:
    """Each subject's times by name. The fastest counts: what others do on the machine only ever adds."""
    names = subjects[0].names
    taken: list[dict[str, list[float]]] = [{name: [] for name in names} for _ in subjects]
    for number in range(samples + 1):
        for name in names:
            for subject, times in zip(subjects, taken, strict=True):
                found = subject.ask(name)
                if number:  # the first time, much is read that is kept
                    times[name].append(found)
    return taken


class _Subject:
    """A process with a home of its own: asked by name, it does it once and says how long that took."""

    def __init__(self, home: Path, size: int, url: str) -> None:
        home.mkdir(mode=0o700, parents=True)
        print(f"{home.parent.name}: {size:,} decided proposals", file=sys.stderr, flush=True)
        kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
        variables = {
            "HOME": str(home),
            "BOTTLE_HOME": str(home),
            "DJANGO_SETTINGS_MODULE": "botbottle.settings",
            "SUPERVISE_PORT": "0",
            "CONSOLE_PORT": "0",
            "EGRESS_PORT": "0",
            "EGRESS_PROCESSES": "1",
            "SUPERVISE_MAX_PER_MINUTE": "1000000",
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.scale_parts.growth_subject", str(home), str(size)],
            cwd=ROOT, env=kept | variables | ({"DATABASE_URL": url} if url else {}),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.names: list[str] = self._answer()

    def ask(self, name: str) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write(name + "\n")
        self._process.stdin.flush()
        return float(self._answer())

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("a measuring process ended")
        return json.loads(line)

    def __enter__(self) -> _Subject:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=120)  # at the end of its input it stops its server


@contextmanager
def _databases(database: str, count: int, directory: Path) -> Iterator[list[str]]:
    from tests.support.databases import running_postgres  # noqa: PLC0415 - pytest comes with it

    with nullcontext("") if database == "SQLite" else running_postgres(directory / "server") as url:
        yield [url.replace("/bottle?", f"/size_{number}?") for number in range(count)]
