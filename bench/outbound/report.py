"""The numbers of a run: medians over rounds, ratios to the direct way of the same round, and the bars."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

SMALL, CROWD, LARGE, NEW = "c16", "c64", "10 MB", "new"
DIRECT, OURS, THEIRS = "direct", "bot-bottle", "mitmproxy"
Figures = dict[str, float]
_UNITS = {SMALL: "per_second", CROWD: "per_second", LARGE: "megabytes_per_second", NEW: "per_second"}


@dataclass(frozen=True)
class Bar:
    what: str
    measured: float
    needed: float
    at_most: bool = False

    @property
    def met(self) -> bool:
        return self.measured <= self.needed if self.at_most else self.measured >= self.needed

    def __str__(self) -> str:
        sign = "≤" if self.at_most else "≥"
        verdict = "met" if self.met else "NOT MET"
        return f"{self.what}: {_number(self.measured)} ({sign} {_number(self.needed)}): {verdict}"


@dataclass
class Report:
    """`measured[label][what]` has one entry per round, in the order of rounds."""

    cores: int
    rounds: int
    seconds: float
    measured: dict[str, dict[str, list[Figures]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )
    memory: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def add(self, label: str, what: str, figures: Figures) -> None:
        self.measured[label][what].append(figures)

    # --- figures

    def rate(self, label: str, what: str) -> float:
        return median(each[_UNITS[what]] for each in self.measured[label][what])

    def cpu(self, label: str, what: str) -> float:
        return median(each["cpu_us"] for each in self.measured[label][what])

    def ratio(self, label: str, what: str, base: str = DIRECT) -> float:
        """The median of the ratios of each round: what slowed the machine slowed both."""
        pairs = zip(self.measured[label][what], self.measured[base][what], strict=True)
        return median(ours[_UNITS[what]] / theirs[_UNITS[what]] for ours, theirs in pairs)

    def _saved(self, label: str, what: str, rival: str) -> float:
        """How many times more of the processor the rival takes for the same."""
        pairs = zip(self.measured[label][what], self.measured[rival][what], strict=True)
        return median(theirs["cpu_us"] / max(ours["cpu_us"], 0.1) for ours, theirs in pairs)

    def bars(self) -> list[Bar]:
        found: list[Bar] = []
        for mode, needs in _NEEDS.items():
            label = f"{mode}, {OURS}"
            if label not in self.measured:
                continue
            found += [
                Bar(f"{mode}: c16 against direct", self.ratio(label, SMALL), needs.against_direct),
                Bar(f"{mode}: c64 against direct", self.ratio(label, CROWD), needs.against_direct),
                Bar(f"{mode}: 10 MB against direct", self.ratio(label, LARGE), needs.large),
                Bar(f"{mode}: CPU per request, µs", self.cpu(label, SMALL), needs.cpu_us, at_most=True),
            ]
            rival = next((other for other in self.measured if other.startswith(f"{mode}, {THEIRS}")), None)
            if rival is not None:
                found.append(
                    Bar(f"{mode}: c16 against mitmproxy", self.ratio(label, SMALL, rival), needs.rival)
                )
                if needs.rival_new:
                    # By processor time: the load's own handshakes limit how many it can open in a second.
                    ratio = self._saved(label, NEW, rival)
                    found.append(Bar(f"{mode}: new connections against mitmproxy", ratio, needs.rival_new))
        return found

    # --- what is written

    def markdown(self) -> str:
        header = [
            "", "c16 req/s", "× direct", "c64 req/s", "× direct", "10 MB, MB/s", "× direct", "new conn/s",
            "CPU µs/req", "CPU µs/new conn", "RSS MB",
        ]  # fmt: skip
        lines = [_row(header), _row(["---", *["--:"] * (len(header) - 1)])]
        lines += [_row(self._cells(label)) for label in self.measured]
        return "\n".join([*lines, "", *(f"- {bar}" for bar in self.bars())])

    def _cells(self, label: str) -> list[str]:
        direct = label == DIRECT
        cells = [label]
        for what in (SMALL, CROWD, LARGE):
            cells += [f"{self.rate(label, what):.0f}", "1" if direct else f"{self.ratio(label, what):.2f}"]
        cells.append(f"{self.rate(label, NEW):.0f}")
        if direct:
            return [*cells, "", "", ""]
        return [
            *cells,
            f"{self.cpu(label, SMALL):.0f}",
            f"{self.cpu(label, NEW):.0f}",
            f"{median(self.memory[label]):.0f}",
        ]

    def as_dict(self) -> dict[str, Any]:
        return {
            "cores": self.cores,
            "rounds": self.rounds,
            "seconds": self.seconds,
            "measured": {label: dict(found) for label, found in self.measured.items()},
            "megabytes": dict(self.memory),
            "bars": [
                {"what": bar.what, "measured": bar.measured, "needed": bar.needed, "met": bar.met}
                for bar in self.bars()
            ],
        }


@dataclass(frozen=True)
class _Needs:
    against_direct: float
    large: float
    cpu_us: float
    rival: float
    rival_new: float = 0


_NEEDS = {
    "tunnel": _Needs(against_direct=0.35, large=0.75, cpu_us=40, rival=2),
    "intercept": _Needs(against_direct=0.20, large=0.5, cpu_us=100, rival=15, rival_new=8),
}


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _number(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.0f}"
