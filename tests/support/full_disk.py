"""A disk without room: pretended to the code in process, or a small file system that is really full."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest

from botbottle.core import disk_space
from botbottle.core.disk_space import Room
from tests.support.requirements import require

AMPLE = Room(free=10**12, total=10**13, files=10**9)
SHORT = Room(free=0, total=10**13, files=10**9)


def no_room(*_: Any, **__: Any) -> NoReturn:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def without_new_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files can be overwritten, but nothing can be added to the disk."""
    monkeypatch.setattr(tempfile, "mkstemp", no_room)
    monkeypatch.setattr(os, "posix_fallocate", no_room)


def pretend(monkeypatch: pytest.MonkeyPatch, room: Room) -> None:
    monkeypatch.setattr(disk_space, "room_in", lambda _: room)


@contextmanager
def small_file_system(directory: Path, size: str) -> Iterator[Path]:
    """Of its own, in memory, at `directory`."""
    able = os.geteuid() == 0 and shutil.which("mount")
    require(able, "a file system to fill", "run as root: mount -t tmpfs")
    directory.mkdir(parents=True, exist_ok=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "none", directory],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    require(mounted.returncode == 0, "a file system to fill", mounted.stderr.strip())
    try:
        yield directory
    finally:
        subprocess.run(["umount", "--lazy", directory], check=True)


class Hog:
    """Takes every byte that becomes free, from outside of any bottle."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "hog"
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._eat, name="hog")

    def __enter__(self) -> Hog:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """What it took is free again."""
        self._stopping.set()
        self._thread.join()
        self._path.unlink()

    def _eat(self) -> None:
        with self._path.open("wb", buffering=0) as file:
            piece = 1 << 20
            while not self._stopping.is_set():
                try:
                    file.write(b"x" * piece)
                except OSError:
                    piece = max(512, piece // 2)
                    self._stopping.wait(0.001)
