"""The bars of the data plane: as plain numbers, or in terms of what another proxy takes in the same run."""

from __future__ import annotations

from bench.outbound.report import CROWD, LARGE, NEW, SMALL, Bar, Report

LABEL = "intercept, bot-bottle"
DIRECT = {"per_second": 1000.0, "megabytes_per_second": 1000.0}


def report(*rounds: tuple[float, float | None]) -> Report:
    """Of what a request took in each round: ours, and squid's if that was there."""
    made = Report(cores=2, rounds=len(rounds), seconds=1.0)
    for ours, squids in rounds:
        for label, took in ((LABEL, ours), ("intercept, squid 5.7", squids)):
            for what in (SMALL, CROWD, LARGE, NEW):
                if took is not None:
                    figures = {"per_second": 500.0, "megabytes_per_second": 500.0, "cpu_us": took}
                    made.add(label, what, figures, beside=(DIRECT, DIRECT))
    return made


def cpu_bar(made: Report) -> Bar:
    (found,) = [bar for bar in made.bars() if "CPU" in bar.what]
    return found


def test_alone_the_plain_figure_is_judged() -> None:
    bar = cpu_bar(report((110, None), (120, None), (130, None)))
    assert (bar.measured, bar.met) == (120, False)


def test_beside_squid_each_round_is_judged_by_what_squid_took_in_it() -> None:
    bar = cpu_bar(report((90, 103), (120, 120), (200, 412)))
    assert round(bar.measured) == 90  # the middle one of 90, 103 and 50
    assert bar.met
    assert "(120 here, 120 for squid, where that takes 103)" in bar.what


def test_a_fast_machine_makes_no_slow_code_good() -> None:
    assert not cpu_bar(report((50, 40))).met
