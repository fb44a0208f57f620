"""Sets of expressions that Hyperscan searches for together. Pure.

Trust boundary: the searched text is hostile. The time of a search depends only on the length of the text.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import hyperscan


class Matcher:
    """A set of expressions that is searched for in one pass.

    Blocks only: the streams of Hyperscan's Python binding (0.9.1) are freed while still in use.
    """

    def __init__(
        self,
        expressions: Iterable[bytes],
        *,
        literal: bool = False,
        caseless: bool = False,
        once: bool = False,
    ) -> None:
        """With `once`, an expression is reported only at its first match in a text."""
        self.expressions = tuple(expressions)
        self._database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
        self._scan = self._database.scan  # asked for every request
        flags = hyperscan.HS_FLAG_CASELESS if caseless else 0
        if self.expressions:
            self._database.compile(
                expressions=self.expressions,
                ids=range(len(self.expressions)),
                elements=len(self.expressions),
                flags=flags | (hyperscan.HS_FLAG_SINGLEMATCH if once else 0),
                literal=literal,
            )

    def first(self, text: bytes) -> int | None:
        """Return the number of an expression that matches."""
        if not self.expressions:
            return None
        found: list[int] = []
        try:
            self._scan(text, _first, 0, found)
        except hyperscan.ScanTerminated:
            return found[0]
        return None

    def ends(self, text: bytes) -> list[tuple[int, int]]:
        """Return all matches: the expression's number and where the match ends."""
        found: list[tuple[int, int]] = []
        if self.expressions:
            self._scan(text, _each, 0, found)
        return found


def _first(number: int, _start: int, _end: int, _flags: int, found: Any) -> bool:
    found.append(number)
    return True


def _each(number: int, _start: int, end: int, _flags: int, found: Any) -> None:
    found.append((number, end))
