"""The free space in the file system of BOTTLE_HOME, and when it is too little.

Imports little: the planes, the command line and background jobs all use it.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path

from botbottle.core.environment import BadSetting

MIB = 1024 * 1024
SHORT_BYTES = 128 * MIB
SHORT_PART = 16  # in a small file system: one part in this many, if that is less
SHORT_FILES = 1000
NEEDED_TO_START = MIB  # the database's memory map, sockets and ports


@dataclass(frozen=True, slots=True)
class Room:
    """What `statvfs` reports for a user who is not root."""

    free: int
    total: int
    files: int | None = None  # how many more can be made; None where there is no such limit

    @property
    def wanted(self) -> int:
        """The disk is short with less than this."""
        return min(SHORT_BYTES, self.total // SHORT_PART)

    @property
    def is_short(self) -> bool:
        return self.free < self.wanted or (self.files is not None and self.files < SHORT_FILES)

    @property
    def is_ample(self) -> bool:
        """Whether there is enough space again, and by more than a few bytes."""
        return self.free >= 2 * self.wanted and (self.files is None or self.files >= 2 * SHORT_FILES)

    def describe(self) -> str:
        if self.free >= self.wanted and self.files is not None and self.files < SHORT_FILES:
            return f"only {self.files:,} more files can be made"
        return f"{size(self.free)} of {size(self.total)} are free"


def room_in(directory: Path) -> Room:
    """The free space of a directory's file system. Raises OSError."""
    found = os.statvfs(directory)
    return Room(
        free=found.f_bavail * found.f_frsize,
        total=found.f_blocks * found.f_frsize,
        files=found.f_favail if found.f_files else None,
    )


def means_full(error: OSError) -> bool:
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def refuse_a_full_disk(home: Path) -> None:
    """Raises BadSetting: SQLite's own error for a full disk at start does not explain itself."""
    room = room_in(home)
    if room.free < NEEDED_TO_START:
        raise BadSetting(
            f"The disk is full: in the file system of {home}, {room.describe()}. Free some space, then start "
            "again."
        )


def size(count: float) -> str:
    """Format a size for people: 512 bytes, 1.5 GB."""
    if count < 1000:
        return f"{count:.0f} bytes"
    for unit in ("kB", "MB", "GB"):
        count /= 1000
        if count < 999.5:
            return f"{count:.3g} {unit}"
    return f"{count / 1000:.3g} TB"
