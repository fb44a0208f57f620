"""What a local bottle has in its `run` directory on the host: lock, state, log, the record of its groups.

The lock is the truth: its supervisor holds it, and the kernel frees it however the supervisor ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from botbottle.backends import secret_variables
from botbottle.backends.base import one_line
from botbottle.backends.local import supervisor_io
from botbottle.backends.local.supervisor_io import SOCKET
from botbottle.core import locks
from botbottle.core.plan_types import BackendError
from egress.contract.secret_variables import FILE as HANDED

LOCK_SECONDS = 2.0  # a check holds the lock for a moment
TAIL_BYTES = 600
FILES = ("log", "log.1", "state.json", "state.json.new", "cgroups", SOCKET, HANDED, "lock")


def alive(run: Path) -> bool:
    """Whether a supervisor holds the lock."""
    return locks.is_locked(run / "lock")


def acquire(run: Path, slug: str) -> int:
    """A descriptor with the lock, for the supervisor to be. Raises BackendError when the bottle lives."""
    try:
        return locks.acquire(run / "lock", seconds=LOCK_SECONDS)
    except BlockingIOError:
        raise BackendError(
            f"{slug} is already running. Stop it first: `manage.py bottle stop {slug}`."
        ) from None


def free_within(run: Path, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while alive(run):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def state(run: Path) -> dict[str, Any]:
    """What the supervisor wrote last; empty when there is nothing to rely on."""
    try:
        known = json.loads((run / "state.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def kill_supervisor(run: Path) -> None:
    """One that does not answer. The bottle dies with it."""
    known = state(run)
    with contextlib.suppress(OSError, KeyError, TypeError):
        if supervisor_io.ticks(known["pid"]) == known["ticks"]:  # else the number is somebody else's by now
            os.kill(known["pid"], signal.SIGKILL)


def groups(run: Path) -> list[str]:
    try:
        return (run / "cgroups").read_text().splitlines()
    except OSError:
        return []


def sweep(run: Path, attempts: int = 100) -> None:
    """Remove what a killed supervisor left behind. Only for a bottle that is dead."""
    (run / SOCKET).unlink(missing_ok=True)
    secret_variables.forget(run)
    left = groups(run)
    supervisor_io.remove_cgroups(left, attempts)
    if not any(map(os.path.isdir, left)):  # else the record is needed: the last process may still be dying
        (run / "cgroups").unlink(missing_ok=True)


def tidy(run: Path, attempts: int = 1) -> None:
    """Sweep if the bottle is dead. The lock is shared, so that no check takes us for a supervisor."""
    if not any((run / name).exists() for name in ("cgroups", SOCKET, HANDED)):
        return  # nearly always
    with contextlib.suppress(OSError), locks.lock_shared(run / "lock"):
        sweep(run, attempts)  # who wants to start it waits meanwhile, and we are asked again


def erase(run: Path) -> None:
    for name in FILES:
        (run / name).unlink(missing_ok=True)


def tail(run: Path) -> str:
    """The end of what it printed, for an error message."""
    try:
        return one_line((run / "log").read_bytes()[-TAIL_BYTES:])
    except OSError:
        return one_line(b"")


def logs(run: Path, *, follow: bool) -> Iterator[bytes]:
    """What the main command printed, and what it prints until its end."""
    with contextlib.suppress(FileNotFoundError):
        yield (run / "log.1").read_bytes()
    while (run / "log").exists():
        with (run / "log").open("rb") as file:
            yield from _read(file.fileno(), run, follow=follow)
            if os.fstat(file.fileno()).st_nlink and os.fstat(file.fileno()).st_ino == _inode(run / "log"):
                return
        # It was moved away when it was full, and read to its end; the next one goes on.


def _read(file: int, run: Path, *, follow: bool) -> Iterator[bytes]:
    while True:
        living, current = (
            alive(run),
            os.fstat(file).st_ino == _inode(run / "log"),
        )  # asked before the last look
        empty = True
        while chunk := os.read(file, 1 << 16):
            empty = False
            yield chunk
        if empty and not (follow and living and current):
            return
        if empty:
            time.sleep(0.1)


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except OSError:
        return -1
