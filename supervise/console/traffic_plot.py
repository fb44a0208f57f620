"""Traffic over time as the values of a small SVG plot. Pure.

Allowed requests are above the line and refused ones below it, so the plot is readable without colours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

SLOT, GAP = 10, 2  # in units of the picture, which is scaled to the page
HALF = 30


@dataclass(frozen=True, slots=True)
class Count:
    allowed: int = 0
    refused: int = 0


@dataclass(frozen=True, slots=True)
class Bar:
    """One period. Rectangles: from `top` to the line, and from the line down by `below`."""

    x: int
    top: float
    above: float
    below: float
    label: str


@dataclass(frozen=True, slots=True)
class Plot:
    bars: tuple[Bar, ...]
    allowed: int
    refused: int
    peak: int
    label: str

    @property
    def width(self) -> int:
        return len(self.bars) * SLOT

    height = 2 * HALF
    line = HALF
    bar_width = SLOT - GAP


def slots(last: datetime, step: timedelta, count: int) -> list[datetime]:
    """The beginnings of `count` periods, of which the last one contains `last`."""
    whole = last.replace(minute=0, second=0, microsecond=0)
    if step >= timedelta(days=1):
        whole = whole.replace(hour=0)
    return [whole - step * back for back in range(count - 1, -1, -1)]


def plot(times: Sequence[datetime], counts: Mapping[datetime, Count], *, form: str) -> Plot:
    """One bar for each time, labelled with the time in the format `form`."""
    found = [counts.get(time, Count()) for time in times]
    peak = max((max(count.allowed, count.refused) for count in found), default=0)
    bars = tuple(
        _bar(number, count, peak, time.strftime(form))
        for number, (time, count) in enumerate(zip(times, found, strict=True))
    )
    allowed, refused = sum(count.allowed for count in found), sum(count.refused for count in found)
    return Plot(bars, allowed, refused, peak, f"{allowed} requests allowed, {refused} refused")


def _bar(number: int, count: Count, peak: int, time: str) -> Bar:
    above, below = _height(count.allowed, peak), _height(count.refused, peak)
    label = f"{time} UTC: {count.allowed} allowed, {count.refused} refused"
    return Bar(number * SLOT + GAP // 2, HALF - above, above, below, label)


def _height(count: int, peak: int) -> float:
    """The bar's height: at least 1 if there is any traffic."""
    return max(1.0, round(count / peak * (HALF - 1), 1)) if count else 0.0
