"""The line diff: right, and bounded whatever the texts hold."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervise.diffs import CONTEXT, MOST_CHARACTERS, Kind, line_diff, side_by_side

FEW_LINES = st.lists(st.sampled_from("abcdef"), max_size=30).map("\n".join)


def shown(before: str, after: str) -> list[str]:
    return [f"{row.kind.mark}{row.text or row.hidden}" for row in line_diff(before, after).rows]


@pytest.mark.parametrize(
    ("before", "after", "rows"),
    [
        ("", "", []),
        ("a\nb", "a\nb", []),
        ("", "a\nb\n", ["+a", "+b"]),
        ("a\nb\n", "", ["−a", "−b"]),
        ("a\nb\nc", "a\nx\nc", ["a", "−b", "+x", "c"]),
        ("a\na\nb", "a\nb", ["a", "−a", "b"]),
        ("1\n2\n3\n4\n5\n6", "1\n2\n3\n4\n5\n6\n7", ["⋯3", "4", "5", "6", "+7"]),
        ("x\n1\n2\n3\n4\n5\n6", "1\n2\n3\n4\n5\n6", ["−x", "1", "2", "3", "⋯3"]),
    ],
)
def test_it_shows_what_changes_with_a_little_context(before: str, after: str, rows: list[str]) -> None:
    assert shown(before, after) == rows


@given(FEW_LINES, FEW_LINES)
def test_its_lines_are_the_two_texts(before: str, after: str) -> None:
    rows = [row for row in line_diff(before, after).rows if row.kind is not Kind.GAP]
    changed_only = [row.text for row in rows if row.kind is not Kind.SAME]
    if before == after:
        assert changed_only == []
    for text, own in ((before, Kind.REMOVED), (after, Kind.ADDED)):
        side = [row.text for row in rows if row.kind in (Kind.SAME, own)]
        left = iter(text.split("\n") if text else [])
        assert all(line in left for line in side), "the side's rows are its lines, in order"
    assert line_diff(before, after).added - line_diff(before, after).removed == len(
        after.split("\n") if after else []
    ) - len(before.split("\n") if before else [])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a\n" * 20_000, "b\n" * 20_000),
        ("a\nb\n" * 10_000, "b\na\n" * 10_000),
        ("\n".join(map(str, range(20_000))), "\n".join(map(str, reversed(range(20_000))))),
        ("", "x" * 1_000_000),
    ],
    ids=["all different", "shifted repeats", "reversed", "one long line"],
)
def test_much_of_anything_gives_few_short_rows(before: str, after: str) -> None:
    diff = line_diff(before, after, most_rows=100)
    assert len(diff.rows) <= 100
    assert all(len(row.text) <= MOST_CHARACTERS for row in diff.rows)
    assert diff.is_cut


def test_one_new_route_in_a_large_table_is_a_small_diff() -> None:
    table = [line for n in range(3000) for line in (f"route h{n:04}", "  path: (all)", "  method: (all)")]
    gates = [f"gate h{n:04}" for n in range(3000)]
    new = [*table[:3000], "route h0999x", "  path: (all)", "  method: (all)", *table[3000:]]
    diff = line_diff("\n".join(table + gates), "\n".join([*new, *gates[:1000], "gate h0999x", *gates[1000:]]))
    assert (diff.added, diff.removed) == (4, 0)
    assert len(diff.rows) <= 4 + 4 * CONTEXT + 3


def test_lines_end_only_at_newlines_so_that_nothing_hides_behind_another_separator() -> None:
    assert shown("", "a\u2028b\x0bc\x1cd\re") == ["+a\u2028b\x0bc\x1cd\re"]


@pytest.mark.parametrize(
    ("before", "after", "pairs"),
    [
        ("a\nb\nc", "a\nB\nc", [("a", "a"), ("b", "B"), ("c", "c")]),
        ("a", "a\nb\nc", [("a", "a"), (None, "b"), (None, "c")]),
        ("a\nb\nc", "c", [("a", None), ("b", None), ("c", "c")]),
        ("a\nb", "X", [("a", "X"), ("b", None)]),
        ("", "", []),
    ],
)
def test_side_by_side_puts_what_replaces_next_to_what_is_replaced(
    before: str, after: str, pairs: list[tuple[str | None, str | None]]
) -> None:
    rows = side_by_side(line_diff(before, after))
    assert [(row.left and row.left.text, row.right and row.right.text) for row in rows] == pairs
