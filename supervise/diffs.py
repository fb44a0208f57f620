"""A line diff as rows for a template. Pure, and bounded in time and size for any text."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from enum import StrEnum
from itertools import zip_longest

CONTEXT = 3
MOST_ROWS = 300
MOST_CHARACTERS = 1000  # of one line
SMALL = 120  # the most lines that are compared with each other


class Kind(StrEnum):
    SAME = "same"
    ADDED = "added"
    REMOVED = "removed"
    GAP = "gap"

    @property
    def mark(self) -> str:
        return {"added": "+", "removed": "−", "gap": "⋯"}.get(self, "")


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a diff. `hidden` counts a gap's unchanged lines, or the characters cut from a long line."""

    kind: Kind
    text: str
    hidden: int = 0


@dataclass(frozen=True, slots=True)
class Diff:
    rows: tuple[Row, ...]
    added: int
    removed: int
    rows_left_out: int

    @property
    def is_cut(self) -> bool:
        return self.rows_left_out > 0 or any(row.hidden for row in self.rows if row.kind is not Kind.GAP)


def line_diff(before: str, after: str, *, most_rows: int = MOST_ROWS) -> Diff:
    """Changed lines with a little context; long stretches and lines are cut, and say by how much."""
    lines = list(aligned(_lines(before), _lines(after)))
    count = Counter(kind for kind, _ in lines)
    rows = list(_with_gaps(lines))
    return Diff(
        rows=tuple(rows[:most_rows]),
        added=count[Kind.ADDED],
        removed=count[Kind.REMOVED],
        rows_left_out=max(0, len(rows) - most_rows),
    )


@dataclass(frozen=True, slots=True)
class Pair:
    """One line of the side-by-side view; a side without a line is None."""

    left: Row | None
    right: Row | None

    @property
    def sides(self) -> tuple[Row | None, Row | None]:
        return self.left, self.right


def side_by_side(diff: Diff) -> list[Pair]:
    """The same rows in two columns: removed lines face the added ones that replace them."""
    pairs: list[Pair] = []
    removed: list[Row] = []
    added: list[Row] = []
    for row in (*diff.rows, None):
        if row is not None and row.kind is Kind.REMOVED and not added:
            removed.append(row)
        elif row is not None and row.kind is Kind.ADDED:
            added.append(row)
        else:
            pairs += [Pair(*facing) for facing in zip_longest(removed, added)]
            removed, added = [row] if row and row.kind is Kind.REMOVED else [], []
            if row is not None and row.kind is not Kind.REMOVED:
                pairs.append(Pair(row, row))
    return pairs


def _lines(text: str) -> list[str]:
    # Not splitlines(), which also splits at characters that an agent could hide text behind.
    return text.removesuffix("\n").split("\n") if text else []


def aligned(old: Sequence[str], new: Sequence[str]) -> Iterator[tuple[Kind, str]]:
    """Align by lines that occur once on both sides, in the same order (patience diff)."""
    old_at = new_at = 0
    for old_anchor, new_anchor in [*_anchors(old, new), (len(old), len(new))]:
        yield from _between(old[old_at:old_anchor], new[new_at:new_anchor])
        if old_anchor < len(old):
            yield Kind.SAME, old[old_anchor]
        old_at, new_at = old_anchor + 1, new_anchor + 1


def _anchors(old: Sequence[str], new: Sequence[str]) -> list[tuple[int, int]]:
    old_count, new_count = Counter(old), Counter(new)
    place_in_new = {line: index for index, line in enumerate(new) if new_count[line] == 1}
    pairs = [
        (index, place_in_new[line])
        for index, line in enumerate(old)
        if old_count[line] == 1 and line in place_in_new
    ]
    return _longest_rising(pairs)


def _longest_rising(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The longest subsequence of pairs that rises on both sides."""
    smallest_end: list[int] = []
    best: list[int] = []
    previous: list[int | None] = []
    for index, (_, place) in enumerate(pairs):
        length = bisect_left(smallest_end, place)
        previous.append(best[length - 1] if length else None)
        if length == len(best):
            smallest_end.append(place)
            best.append(index)
        else:
            smallest_end[length], best[length] = place, index
    run = []
    at = best[-1] if best else None
    while at is not None:
        run.append(pairs[at])
        at = previous[at]
    return run[::-1]


def _between(old: Sequence[str], new: Sequence[str]) -> Iterator[tuple[Kind, str]]:
    start = 0
    while start < min(len(old), len(new)) and old[start] == new[start]:
        yield Kind.SAME, old[start]
        start += 1
    end = 0
    while end < min(len(old), len(new)) - start and old[-1 - end] == new[-1 - end]:
        end += 1
    yield from _compared(old[start : len(old) - end], new[start : len(new) - end])
    yield from ((Kind.SAME, line) for line in old[len(old) - end :])


def _compared(old: Sequence[str], new: Sequence[str]) -> Iterator[tuple[Kind, str]]:
    if len(old) > SMALL or len(new) > SMALL:  # comparing all lines would take long: replace the whole block
        blocks = [("replace", 0, len(old), 0, len(new))]
    else:
        blocks = list(SequenceMatcher(None, old, new, autojunk=False).get_opcodes())
    for tag, old_from, old_to, new_from, new_to in blocks:
        if tag == "equal":
            yield from ((Kind.SAME, line) for line in old[old_from:old_to])
        else:
            yield from ((Kind.REMOVED, line) for line in old[old_from:old_to])
            yield from ((Kind.ADDED, line) for line in new[new_from:new_to])


def _with_gaps(lines: Sequence[tuple[Kind, str]]) -> Iterator[Row]:
    """Replace unchanged lines far from any change by one row that counts them."""
    changed = [index for index, (kind, _) in enumerate(lines) if kind is not Kind.SAME]
    shown = {near for index in changed for near in range(index - CONTEXT, index + CONTEXT + 1)}
    skipped = 0
    for index, (kind, line) in enumerate(lines):
        if index not in shown:
            skipped += 1
            continue
        if skipped:
            yield Row(Kind.GAP, "", skipped)
            skipped = 0
        yield Row(kind, line[:MOST_CHARACTERS], max(0, len(line) - MOST_CHARACTERS))
    if skipped and changed:
        yield Row(Kind.GAP, "", skipped)
