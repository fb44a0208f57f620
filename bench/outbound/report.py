"""The numbers of a run: medians over rounds, ratios within each round, and the bars."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

SMALL, CROWD, LARGE, NEW = "c16", "c64", "10 MB", "new"
DIRECT, OURS, SQUID, MITMPROXY = "direct", "bot-bottle", "squid", "mitmproxy"
Figures = dict[str, float]
_UNITS = {SMALL: "per_second", CROWD: "per_second", LARGE: "megabytes_per_second", NEW: "per_second"}


@dataclass(frozen=True)
class Bar:
    what: str
    measured: float
    needed: float

    @property
    def met(self) -> bool:
        return self.measured >= self.needed

    def __str__(self) -> str:
        verdict = "met" if self.met else "NOT MET"
        return f"{self.what}: {_number(self.measured)} (≥ {_number(self.needed)}): {verdict}"


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

    def rate(self, label: str, what: str) -> float:
        return median(each[_UNITS[what]] for each in self.measured[label][what])

    def cpu(self, label: str, what: str) -> float:
        return median(each["cpu_us"] for each in self.measured[label][what])

    def against(self, label: str, what: str, rival: str) -> float:
        """The median of the ratios of each round: what slowed the machine slowed both."""
        unit = _UNITS[what]
        pairs = zip(self.measured[label][what], self.measured[rival][what], strict=True)
        return median(ours[unit] / theirs[unit] for ours, theirs in pairs)

    def _rival(self, mode: str, name: str) -> str | None:
        return next((label for label in self.measured if label.startswith(f"{mode}, {name}")), None)

    def bars(self) -> list[Bar]:
        """Those whose rival was measured too."""
        found = []
        for mode, name, what, needed in _NEEDS:
            rival = self._rival(mode, name)
            if rival is not None:
                measured = self.against(f"{mode}, {OURS}", what, rival)
                found.append(Bar(f"{mode}: {what} against {name}", measured, needed))
        return found

    # --- what is written

    def markdown(self) -> str:
        header = [
            "", "c16 req/s", "× direct", "× squid", "c64 req/s", "× direct", "× squid",
            "10 MB, MB/s", "× direct", "× squid", "new conn/s", "CPU µs/req", "CPU µs/new conn", "RSS MB",
        ]  # fmt: skip
        lines = [_row(header), _row(["---", *["--:"] * (len(header) - 1)])]
        lines += [_row(self._cells(label)) for label in self.measured]
        return "\n".join([*lines, "", *(f"- {bar}" for bar in self.bars())])

    def _cells(self, label: str) -> list[str]:
        squid = self._rival(label.partition(",")[0], SQUID)
        cells = [label]
        for what in (SMALL, CROWD, LARGE):
            cells += [
                f"{self.rate(label, what):.0f}",
                f"{self.against(label, what, DIRECT):.2f}",
                f"{self.against(label, what, squid):.2f}" if squid else "",
            ]
        cells.append(f"{self.rate(label, NEW):.0f}")
        if label == DIRECT:
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


# bot-bottle's rate in terms of the rival's, at the least.
_NEEDS = (
    ("tunnel", SQUID, SMALL, 0.9),
    ("tunnel", SQUID, CROWD, 0.9),
    ("tunnel", SQUID, LARGE, 0.9),
    ("tunnel", MITMPROXY, SMALL, 2),
    ("intercept", SQUID, SMALL, 1.2),
    ("intercept", SQUID, CROWD, 1.2),
    ("intercept", SQUID, LARGE, 1.3),
    ("intercept", MITMPROXY, SMALL, 12),
)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _number(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.0f}"
