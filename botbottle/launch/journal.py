"""The journal: what was done to a bottle, and by whom. Any process can append, with or without a database.

The control plane imports it (supervise/bottles/reconcile.py). It lies beside the sandbox, never inside.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from botbottle.core import disk_space

NAME = "journal"
STARTING, STARTED, ENDED, FAILED = "starting", "started", "ended", "failed"
STOPPING, USED = "stopping", "used"


@dataclass(frozen=True, slots=True)
class Entry:
    what: str
    who: str
    at: float
    pid: int  # of the process that did it; `begun` identifies it, since ids are reused
    begun: str
    exit_code: int | None = None
    text: str = ""  # a failure's reason, or the program that was executed

    @property
    def writer_lives(self) -> bool:
        return _begun(self.pid) == self.begun


@dataclass(frozen=True, slots=True)
class Reading:
    """Entries after a position, each with the position after it."""

    entries: tuple[tuple[Entry, int], ...] = ()
    start: int = 0


def append(directory: Path, what: str, *, who: str, exit_code: int | None = None, text: str = "") -> None:
    """Append one whole line. Raises OSError.

    A full disk must not prevent a stop, so only a start fails on it; reconciling recovers the rest.
    """
    pid = os.getpid()
    entry = Entry(what, who, time.time(), pid, _begun(pid), exit_code, text)
    # Starts on a new line, even if a full disk has cut the one before.
    line = b"\n" + json.dumps(asdict(entry)).encode("ascii") + b"\n"
    descriptor = os.open(directory / NAME, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.write(descriptor, line)
    except OSError as error:
        if what == STARTING or not disk_space.means_full(error):
            raise
    finally:
        os.close(descriptor)


def read(directory: Path, start: int) -> Reading:
    """Read the entries after `start`; all of them if the journal is shorter, since it was replaced."""
    try:
        content = (directory / NAME).read_bytes()
    except FileNotFoundError:
        return Reading()
    if start > len(content):
        start = 0
    found, position = [], start
    for line in content[start:].splitlines(keepends=True):
        if not line.endswith(b"\n"):
            break  # still being written
        position += len(line)
        entry = _entry(line)
        if entry is not None:
            found.append((entry, position))
    return Reading(tuple(found), start)


def exists(directory: Path) -> bool:
    """Whether this home has ever done something with the bottle."""
    return (directory / NAME).exists()


def forget(directory: Path) -> None:
    (directory / NAME).unlink(missing_ok=True)


def _entry(line: bytes) -> Entry | None:
    """Parse a line; None for one that a full disk or a crash has cut."""
    try:
        return Entry(**json.loads(line))
    except (ValueError, TypeError):
        return None


def _begun(pid: int) -> str:
    """The kernel's start time of a process; empty when there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - on the way of every quick start
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in (b"Z", b"X") else fields[19].decode("ascii")
