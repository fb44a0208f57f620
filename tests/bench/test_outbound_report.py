"""The bars of the data plane: its rates in terms of what another proxy reaches in the same round."""

from __future__ import annotations

import pytest

from bench.outbound.report import CROWD, LARGE, NEW, SMALL, Report


def report(*rounds: dict[str, float]) -> Report:
    """How many requests and megabytes a second each label reached in each round."""
    made = Report(cores=2, rounds=len(rounds), seconds=1.0)
    for speeds in rounds:
        for label, speed in {"direct": 1000.0, **speeds}.items():
            for what in (SMALL, CROWD, LARGE, NEW):
                figures = {"per_second": speed, "megabytes_per_second": speed / 2, "cpu_us": 10.0}
                made.measured[label][what].append(figures)
            made.memory[label].append(50.0)
    return made


def verdicts(made: Report) -> dict[str, bool]:
    return {bar.what: bar.met for bar in made.bars()}


def beside_squid(mode: str, ratio: float) -> Report:
    return report({f"{mode}, bot-bottle": 100 * ratio, f"{mode}, squid 5.7": 100})


def test_alone_there_is_nothing_to_be_judged_by() -> None:
    made = report({"intercept, bot-bottle": 500})
    assert made.bars() == []
    assert "| intercept, bot-bottle | 500 | 0.50 |  |" in made.markdown()


@pytest.mark.parametrize(("ratio", "met"), [(0.85, [False] * 3), (0.95, [True] * 3)])
def test_a_tunnel_beside_squid(ratio: float, met: list[bool]) -> None:
    assert list(verdicts(beside_squid("tunnel", ratio)).values()) == met


@pytest.mark.parametrize(
    ("ratio", "met"), [(1.1, [False] * 3), (1.25, [True, True, False]), (1.4, [True] * 3)]
)
def test_an_inspected_connection_beside_squid(ratio: float, met: list[bool]) -> None:
    made = beside_squid("intercept", ratio)
    assert verdicts(made) == {
        f"intercept: {what} against squid": each
        for what, each in zip((SMALL, CROWD, LARGE), met, strict=True)
    }
    assert f"| {ratio:.2f} |" in made.markdown()


@pytest.mark.parametrize(("mode", "least"), [("tunnel", 2), ("intercept", 12)])
def test_beside_mitmproxy_small_requests_count(mode: str, least: float) -> None:
    for ratio in (least - 0.1, least + 0.1):
        made = report({f"{mode}, bot-bottle": 10 * ratio, f"{mode}, mitmproxy 11": 10})
        assert verdicts(made) == {f"{mode}: c16 against mitmproxy": ratio > least}


def test_a_ratio_is_taken_within_each_round() -> None:
    """A machine that slows down for a whole round slows both."""
    rounds = [(130, 100), (13, 10), (125, 100)]
    made = report(
        *({"intercept, bot-bottle": ours, "intercept, squid 5.7": squids} for ours, squids in rounds)
    )
    bar = made.bars()[0]
    assert (bar.measured, bar.met) == (1.3, True)
