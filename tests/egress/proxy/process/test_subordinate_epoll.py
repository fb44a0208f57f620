"""Whose number of watches the loop's epoll instance counts for."""

from __future__ import annotations

import os
import select
import shutil
from pathlib import Path

import pytest

from egress.proxy.process import subordinate_epoll
from tests.support.requirements import require

UID = 64123


@pytest.fixture
def ranges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(subordinate_epoll, "RANGES", tmp_path / "subuid")
    monkeypatch.setattr(os, "geteuid", lambda: UID)
    return tmp_path / "subuid"


@pytest.mark.parametrize(
    ("text", "uid"),
    [
        (f"{UID}:100000:65536\n", 165535),
        (f"other:100000:65536\n{UID}:165536:1\n", 165536),
        ("other:100000:65536\n", None),
        (f"{UID}:100000:0\n", None),
        (f"{UID}:many\n", None),
        ("", None),
    ],
)
def test_it_is_the_last_one_of_the_accounts_first_range(ranges: Path, text: str, uid: int | None) -> None:
    ranges.write_text(text)
    assert subordinate_epoll._subordinate_uid() == uid


def test_without_a_range_or_a_tool_it_counts_for_the_account_itself(
    ranges: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert subordinate_epoll.epoll() is None
    ranges.write_text(f"{UID}:100000:65536\n")
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert subordinate_epoll.epoll() is None


def test_a_tool_that_refuses_leaves_nothing_behind(ranges: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranges.write_text(f"{UID}:100000:65536\n")
    monkeypatch.setattr(shutil, "which", lambda _: "/bin/false")
    before = len(list(Path("/proc/self/fd").iterdir()))
    assert subordinate_epoll.epoll() is None
    assert len(list(Path("/proc/self/fd").iterdir())) <= before  # what earlier tests had open may go


def test_what_it_made_watches() -> None:
    require(os.geteuid() == 0, "root, which may become anybody,", "run the tests as root")
    descriptor = subordinate_epoll.epoll()
    assert descriptor is not None
    with select.epoll.fromfd(descriptor) as made:
        read, write = os.pipe()
        made.register(read, select.EPOLLIN)
        os.write(write, b"x")
        assert made.poll(0) == [(read, select.EPOLLIN)]
        os.close(read), os.close(write)
