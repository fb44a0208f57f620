"""Measures a bottle's use of a disk: its directories, and deleted files that it still has open.

Trust boundary: the agent made all of it. Links are not followed, and a measurement ends after a given time.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

BLOCK = 512  # the unit of `st_blocks`, whatever the file system uses


@dataclass(slots=True)
class Usage:
    """Bytes on one device. `recent` counts files that changed since a given time."""

    device: int
    since: float
    until: float  # of the monotonic clock
    total: int = 0
    recent: int = 0
    is_complete: bool = True
    hides: bool = False  # a directory cannot be read
    _seen: set[int] = field(default_factory=set)  # files with several names

    def add_directory(self, path: str) -> None:
        """Add everything below the path that is on the same device."""
        waiting = [path]
        while waiting and self._in_time():
            try:
                with os.scandir(waiting.pop()) as entries:
                    waiting += self._directories_among(entries)
            except OSError as error:
                self._note(error)

    def add_deleted_files_of(self, process: int) -> None:
        """Add files without a name that the process has open: they still take room."""
        directory = f"/proc/{process}/fd"
        try:
            numbers = os.listdir(directory)  # noqa: PTH208 - of thousands
        except OSError:  # it ended, or belongs to another account
            return
        for number in numbers:
            if not self._in_time():
                return
            try:
                found = os.stat(f"{directory}/{number}")  # noqa: PTH116 - of thousands
            except OSError:
                continue
            if not found.st_nlink:
                self._count(found, shared=True)

    def _directories_among(self, entries: Iterable[os.DirEntry[str]]) -> Iterator[str]:
        for entry in entries:
            if not self._in_time():
                return
            try:
                found = entry.stat(follow_symlinks=False)
            except OSError as error:
                self._note(error)
                continue
            is_directory = stat.S_ISDIR(found.st_mode)
            self._count(found, shared=found.st_nlink > 1 and not is_directory)
            if is_directory and found.st_dev == self.device:
                yield entry.path

    def _count(self, found: os.stat_result, *, shared: bool) -> None:
        if found.st_dev != self.device or (shared and found.st_ino in self._seen):
            return
        if shared:
            self._seen.add(found.st_ino)
        size = found.st_blocks * BLOCK
        self.total += size
        # The change time is the system's own: no program can set it back.
        self.recent += size if found.st_ctime >= self.since else 0

    def _note(self, error: OSError) -> None:
        """Record that a path was hidden, by its length or mode. A path that is gone hides nothing."""
        if not isinstance(error, FileNotFoundError | NotADirectoryError):
            self.is_complete, self.hides = False, True

    def _in_time(self) -> bool:
        if monotonic() > self.until:
            self.is_complete = False
            return False
        return True


def family(process: int) -> list[int]:
    """The process and all its descendants that still live."""
    found = [process]
    for each in found:  # grows meanwhile
        for children in Path(f"/proc/{each}/task").glob("*/children"):
            try:
                found += map(int, children.read_text().split())
            except OSError:  # ended meanwhile
                continue
    return found
