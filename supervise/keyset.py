"""Pages of a long list, newest first, by a cursor: every page costs the same."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, TypeVar

from django.db.models import Model, Q, QuerySet

Row = TypeVar("Row", bound=Model)
Place = tuple[datetime, int]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_MOST_DIGITS = 16  # of a number in a cursor


@dataclass(frozen=True, slots=True)
class Page(Generic[Row]):
    """One page. `newer` and `older` are cursors for the address, or empty."""

    rows: list[Row]
    newer: str = ""
    older: str = ""


def page_of(rows: QuerySet[Row], size: int, *, before: str = "", after: str = "") -> Page[Row]:
    """The rows older than the cursor `before`, or newer than `after`; else the newest ones.

    The rows have `created_at` and a numeric key, and an index of both. An invalid cursor is ignored.
    """
    found: Page[Row] | None = None
    if place := _place(before):
        found = _older(rows, size, place)
    elif place := _place(after):
        found = _newer(rows, size, place)
    return found or _first(rows, size)


def _first(rows: QuerySet[Row], size: int) -> Page[Row]:
    found = list(rows.order_by("-created_at", "-pk")[: size + 1])
    return Page(found[:size], older=_cursor(found[size - 1]) if len(found) > size else "")


def _older(rows: QuerySet[Row], size: int, place: Place) -> Page[Row] | None:
    at, key = place
    # The first condition is a range of the index, the second is for rows with the same time.
    beyond = rows.filter(Q(created_at__lt=at) | Q(pk__lt=key), created_at__lte=at)
    page = _first(beyond, size)
    return Page(page.rows, _cursor(page.rows[0]), page.older) if page.rows else None


def _newer(rows: QuerySet[Row], size: int, place: Place) -> Page[Row] | None:
    """None if these rows are on the first page, which is full."""
    at, key = place
    beyond = rows.filter(Q(created_at__gt=at) | Q(pk__gt=key), created_at__gte=at)
    found = list(beyond.order_by("created_at", "pk")[: size + 1])
    if len(found) <= size:
        return None
    shown = found[:size][::-1]
    return Page(shown, _cursor(shown[0]), _cursor(shown[-1]))


def _cursor(row: Any) -> str:
    return f"{(row.created_at - _EPOCH) // _MICROSECOND}-{row.pk}"


def _place(cursor: str) -> Place | None:
    moment, _, key = cursor.partition("-")
    if not all(word.isascii() and word.isdigit() and len(word) <= _MOST_DIGITS for word in (moment, key)):
        return None
    return _EPOCH + int(moment) * _MICROSECOND, int(key)
