"""What every part of bench/scale.py hands back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Bar:
    """A limit that a number of the run itself must not exceed."""

    what: str
    value: float
    at_most: float

    @property
    def is_met(self) -> bool:
        return self.value <= self.at_most

    def __str__(self) -> str:
        word = "met" if self.is_met else "**NOT MET**"
        return f"{self.what}: {self.value:.2f} (bar {self.at_most:g}): {word}"


@dataclass
class Section:
    """`text` is Markdown; `plots` are SVG images by the name of their file."""

    title: str
    text: str
    bars: list[Bar]
    numbers: dict[str, Any] = field(default_factory=dict)
    plots: dict[str, str] = field(default_factory=dict)

    def markdown(self, images: str) -> str:
        pictures = [f"![{self.title}]({images}/{name})\n" for name in self.plots]
        bars = "\n".join(f"- {bar}" for bar in self.bars)
        return "\n".join([f"## {self.title}\n", self.text, "", *pictures, bars, ""])
