"""Traffic as a plot: every request is in it once, and nothing leaves the picture."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import hypothesis.strategies as st
from hypothesis import given

from supervise.console.traffic_plot import HALF, Count, plot, slots

NOW = datetime(2030, 3, 17, 17, 46, 40, tzinfo=UTC)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)


def test_the_last_stretch_holds_now() -> None:
    hours = slots(NOW, HOUR, 24)
    assert (hours[0], hours[-1]) == (
        datetime(2030, 3, 16, 18, tzinfo=UTC),
        datetime(2030, 3, 17, 17, tzinfo=UTC),
    )
    days = slots(NOW, DAY, 14)
    assert (days[0], days[-1]) == (datetime(2030, 3, 4, tzinfo=UTC), datetime(2030, 3, 17, tzinfo=UTC))


def test_a_plot_without_traffic_has_bars_of_no_height() -> None:
    empty = plot(slots(NOW, HOUR, 24), {}, form="%H")
    assert len(empty.bars) == 24
    assert {(bar.above, bar.below) for bar in empty.bars} == {(0.0, 0.0)}
    assert empty.label == "0 requests allowed, 0 refused"


def test_one_refusal_among_thousands_is_still_to_be_seen() -> None:
    times = slots(NOW, HOUR, 2)
    drawn = plot(times, {times[0]: Count(100_000, 1)}, form="%H:00")
    assert drawn.bars[0].below == 1.0
    assert drawn.bars[0].label == "16:00 UTC: 100000 allowed, 1 refused"


@given(st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**9)), min_size=1, max_size=48))
def test_no_bar_leaves_the_picture_and_none_is_lost(numbers: list[tuple[int, int]]) -> None:
    times = slots(NOW, HOUR, len(numbers))
    drawn = plot(times, dict(zip(times, (Count(*pair) for pair in numbers), strict=True)), form="%H")
    assert drawn.allowed == sum(allowed for allowed, _ in numbers)
    assert drawn.refused == sum(refused for _, refused in numbers)
    for bar, (allowed, refused) in zip(drawn.bars, numbers, strict=True):
        assert 0 <= bar.top <= HALF and bar.top + bar.above == HALF
        assert bar.below <= HALF
        assert (bar.above > 0, bar.below > 0) == (allowed > 0, refused > 0)
        assert 0 <= bar.x <= drawn.width - drawn.bar_width
