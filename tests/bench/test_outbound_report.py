"""The bars of the data plane: as plain numbers, and in terms of what another proxy takes in the same run."""

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


def cpu_bars(made: Report) -> list[Bar]:
    return [bar for bar in made.bars() if "CPU" in bar.what]


def test_alone_there_is_the_plain_figure() -> None:
    (bar,) = cpu_bars(report((110, None), (120, None), (130, None)))
    assert (bar.measured, bar.met) == (120, False)


def test_beside_squid_each_round_is_also_judged_by_what_squid_took_in_it() -> None:
    plain, compared = cpu_bars(report((90, 103), (120, 120), (200, 412)))
    assert (plain.measured, plain.met) == (120, False)
    assert (round(compared.measured), compared.met) == (90, True)  # the middle one of 90, 103 and 50


def test_a_fast_machine_makes_no_slow_code_good() -> None:
    plain, compared = cpu_bars(report((50, 40)))
    assert (plain.met, compared.met) == (True, False)
