"""The numbers of a run: medians over rounds, ratios to the direct way beside each, and the bars."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import mean, median
from typing import Any

SMALL, CROWD, LARGE, NEW = "c16", "c64", "10 MB", "new"
DIRECT, OURS, THEIRS, YARDSTICK = "direct", "bot-bottle", "mitmproxy", "squid"
Figures = dict[str, float]
_OF_DIRECT = "of_direct"
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
    """`measured[label][what]` has one entry per round, in the order of rounds; the direct way has more."""

    cores: int
    rounds: int
    seconds: float
    measured: dict[str, dict[str, list[Figures]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )
    memory: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def add(
        self, label: str, what: str, figures: Figures, *, beside: tuple[Figures, Figures] | None = None
    ) -> None:
        """`beside` is what the direct way did just before and just after."""
        if beside is not None:
            unit = _UNITS[what]
            figures = {**figures, _OF_DIRECT: figures[unit] / mean(each[unit] for each in beside)}
        self.measured[label][what].append(figures)

    # --- figures

    def rate(self, label: str, what: str) -> float:
        return median(each[_UNITS[what]] for each in self.measured[label][what])

    def cpu(self, label: str, what: str) -> float:
        return median(each["cpu_us"] for each in self.measured[label][what])

    def of_direct(self, label: str, what: str) -> float:
        return median(each[_OF_DIRECT] for each in self.measured[label][what])

    def _against(self, label: str, what: str, rival: str) -> float:
        """The median of the ratios of each round: what slowed the machine slowed both."""
        unit = _UNITS[what]
        return median(ours[unit] / theirs[unit] for ours, theirs in self._pairs(label, what, rival))

    def _cost(self, label: str, what: str, rival: str) -> float:
        """How much of the processor it takes, in terms of what the rival takes."""
        pairs = self._pairs(label, what, rival)
        return median(max(ours["cpu_us"], 0.1) / max(theirs["cpu_us"], 0.1) for ours, theirs in pairs)

    def _pairs(self, label: str, what: str, rival: str) -> Iterator[tuple[Figures, Figures]]:
        return zip(self.measured[label][what], self.measured[rival][what], strict=True)

    def _rival(self, mode: str, name: str) -> str | None:
        return next((label for label in self.measured if label.startswith(f"{mode}, {name}")), None)

    def bars(self) -> list[Bar]:
        found: list[Bar] = []
        for mode, needs in _NEEDS.items():
            label = f"{mode}, {OURS}"
            if label not in self.measured:
                continue
            found += [
                Bar(f"{mode}: c16 against direct", self.of_direct(label, SMALL), needs.against_direct),
                Bar(f"{mode}: c64 against direct", self.of_direct(label, CROWD), needs.against_direct),
                Bar(f"{mode}: 10 MB against direct", self.of_direct(label, LARGE), needs.large),
                Bar(f"{mode}: CPU per request, µs", self.cpu(label, SMALL), needs.cpu_us, at_most=True),
            ]
            if squid := self._rival(mode, YARDSTICK):
                there = self._cost(label, SMALL, squid) * needs.yardstick_us
                what = f"{mode}: CPU per request, µs, where squid takes {needs.yardstick_us:.0f}"
                found.append(Bar(what, there, needs.cpu_us, at_most=True))
            if rival := self._rival(mode, THEIRS):
                found.append(
                    Bar(f"{mode}: c16 against mitmproxy", self._against(label, SMALL, rival), needs.rival)
                )
                if needs.rival_new:
                    # By processor time: the load's own handshakes limit how many it can open in a second.
                    saved = 1 / self._cost(label, NEW, rival)
                    found.append(Bar(f"{mode}: new connections against mitmproxy", saved, needs.rival_new))
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
            cells += [
                f"{self.rate(label, what):.0f}",
                "1" if direct else f"{self.of_direct(label, what):.2f}",
            ]
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
    yardstick_us: float  # what squid took on the machine that the bars were set on
    rival: float
    rival_new: float = 0


_NEEDS = {
    "tunnel": _Needs(against_direct=0.35, large=0.75, cpu_us=40, yardstick_us=33, rival=2),
    "intercept": _Needs(against_direct=0.20, large=0.5, cpu_us=100, yardstick_us=103, rival=15, rival_new=8),
}


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _number(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.0f}"
