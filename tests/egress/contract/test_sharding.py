"""Which egress process serves a bottle: the same answer for both planes, and for good."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from botbottle.core.environment import BadSetting
from egress.contract import sharding


@given(st.from_regex(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", fullmatch=True), st.integers(1, sharding.MOST))
def test_every_bottle_has_one_owner(slug: str, processes: int) -> None:
    assert sharding.owner(slug, processes) in range(processes)


@pytest.mark.parametrize(
    ("slug", "of_two", "of_three", "of_four"), [("agent-a", 0, 1, 2), ("agent-b", 1, 0, 1)]
)
def test_the_owner_is_the_same_in_every_process_and_release(
    slug: str, of_two: int, of_three: int, of_four: int
) -> None:
    """The control plane and the proxy may not be of the same start, nor of the same version."""
    owners = [sharding.owner(slug, processes) for processes in (1, 2, 3, 4)]
    assert owners == [0, of_two, of_three, of_four]


@pytest.mark.parametrize("processes", [2, 3, 4, 8])
def test_bottles_are_spread(processes: int) -> None:
    counted = Counter(sharding.owner(f"team-{number}", processes) for number in range(1000))
    assert min(counted.values()) > 0.7 * 1000 / processes and len(counted) == processes


def test_a_start_takes_a_process_for_each_core_but_not_very_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EGRESS_PROCESSES", raising=False)
    for cores, processes in [(1, 1), (2, 2), (64, 4)]:
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cores=cores: set(range(cores)))
        assert sharding.configured("EGRESS_PROCESSES") == processes


@pytest.mark.parametrize("value", ["0", "65", "-1", "two", "1.5", ""])
def test_a_number_that_makes_no_sense_is_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("EGRESS_PROCESSES", value)
    with pytest.raises(BadSetting, match="EGRESS_PROCESSES"):
        sharding.configured("EGRESS_PROCESSES")


@pytest.mark.parametrize(
    ("told", "believed"),
    [
        ('{"port": 9101, "processes": 3}', 3),
        ('{"port": 9101}', 2),
        ('{"processes": 0}', 2),
        ('{"processes": "3"}', 2),
        ('{"processes": 65}', 2),
        ("[3]", 2),
        ("{", 2),
        (None, 2),
    ],
)
def test_what_the_running_proxy_says_counts(tmp_path: Path, told: str | None, believed: int) -> None:
    if told is not None:
        (tmp_path / sharding.DISCOVERY).write_text(told)
    assert sharding.running(tmp_path, 2) == believed


def test_every_process_has_a_control_socket_of_its_own(tmp_path: Path) -> None:
    names = [sharding.control_socket(tmp_path, number).name for number in range(sharding.MOST)]
    assert len(set(names)) == sharding.MOST
    assert names[0] == "egress.sock", "as with one process"
