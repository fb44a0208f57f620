"""One process holds a lock file at a time; checks do not disturb each other, and an end frees it."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from botbottle.core import locks

HOLDER = """
import sys, pathlib
from botbottle.core import locks
locks.acquire(pathlib.Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_only_one_holds_it(tmp_path: Path) -> None:
    path = tmp_path / "run" / "lock"
    with locks.lock(path):
        with pytest.raises(BlockingIOError), locks.lock(path, wait=False):
            pytest.fail("two hold it")
        with pytest.raises(BlockingIOError):
            locks.acquire(path)
        with pytest.raises(BlockingIOError), locks.lock_shared(path):
            pytest.fail("a reader holds it too")
        assert locks.is_locked(path)
    assert not locks.is_locked(path)
    os.close(locks.acquire(path))


def test_readers_share_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.touch()
    with locks.lock_shared(path), locks.lock_shared(path):
        assert not locks.is_locked(path), "a check is not a holder"
        with pytest.raises(BlockingIOError):
            locks.acquire(path, seconds=0.05)


def test_a_missing_file_is_not_locked(tmp_path: Path) -> None:
    assert not locks.is_locked(tmp_path / "lock")
    assert not (tmp_path / "lock").exists(), "a check creates nothing"


def test_the_end_of_its_process_frees_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    command = [sys.executable, "-c", HOLDER, str(path)]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout
    assert holder.stdout.readline() == "held\n"
    assert locks.is_locked(path)
    holder.kill()
    holder.communicate()
    os.close(locks.acquire(path))


def test_a_removed_file_does_not_give_a_second_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    first = locks.acquire(path)
    path.unlink()
    second = locks.acquire(path)
    assert os.fstat(second).st_ino == path.stat().st_ino
    assert os.fstat(first).st_ino != os.fstat(second).st_ino
    os.close(first)
    os.close(second)


def test_a_file_system_without_locks_costs_no_descriptors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    before = _open_descriptors()
    for _ in range(3):
        with pytest.raises(OSError, match="No locks available"):
            locks.acquire(tmp_path / "lock")
    assert _open_descriptors() == before


def _open_descriptors() -> set[Path]:
    return set(Path("/proc/self/fd").iterdir())
