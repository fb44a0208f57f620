"""The `run` directory of a local bottle on the host: lock, state, log, and the record of its control groups.

The lock decides whether the bottle lives: the kernel frees it however the supervisor ends.
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
from egress.contract.secret_variables import FILE as SECRETS_FILE

LOCK_SECONDS = 2.0  # a check holds the lock for a moment
TAIL_BYTES = 600
FILES = ("log", "log.1", "state.json", "state.json.new", "cgroups", SOCKET, SECRETS_FILE, "lock")


def alive(run: Path) -> bool:
    """Whether a supervisor holds the lock."""
    return locks.is_locked(run / "lock")


def acquire(run: Path, slug: str) -> int:
    """Return a descriptor with the lock, for the next supervisor. Raises BackendError if the bottle lives."""
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
    """The state that the supervisor wrote last; empty when it is missing or damaged."""
    try:
        known = json.loads((run / "state.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def kill_supervisor(run: Path) -> None:
    """Kill a supervisor that does not answer. The bottle dies with it."""
    known = state(run)
    with contextlib.suppress(OSError, KeyError, TypeError):
        if supervisor_io.ticks(known["pid"]) == known["ticks"]:  # else another process has that id now
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
    if not any(map(os.path.isdir, left)):  # else keep the record: the last process may still be dying
        (run / "cgroups").unlink(missing_ok=True)


def tidy(run: Path, attempts: int = 1) -> None:
    """Sweep if the bottle is dead. The lock is shared, so that no check takes us for a supervisor."""
    if not any((run / name).exists() for name in ("cgroups", SOCKET, SECRETS_FILE)):
        return  # the usual case
    with contextlib.suppress(OSError), locks.lock_shared(run / "lock"):
        sweep(run, attempts)  # a start waits meanwhile; what is left is removed by the next call


def erase(run: Path) -> None:
    for name in FILES:
        (run / name).unlink(missing_ok=True)


def tail(run: Path) -> str:
    """The end of the bottle's output, for an error message."""
    try:
        return one_line((run / "log").read_bytes()[-TAIL_BYTES:])
    except OSError:
        return one_line(b"")


def logs(run: Path, *, follow: bool) -> Iterator[bytes]:
    """Yield what the main command printed; with `follow`, until its end."""
    with contextlib.suppress(FileNotFoundError):
        yield (run / "log.1").read_bytes()
    while (run / "log").exists() or alive(run):  # while it is rotated, it is missing for a moment
        with contextlib.suppress(FileNotFoundError), (run / "log").open("rb") as file:
            yield from _read(file.fileno(), run, follow=follow)
            if os.fstat(file.fileno()).st_nlink and os.fstat(file.fileno()).st_ino == _inode(run / "log"):
                return
        time.sleep(0.01)  # the file was rotated and has been read to its end; continue with the next one


def _read(file: int, run: Path, *, follow: bool) -> Iterator[bytes]:
    while True:
        living, current = (
            alive(run),
            os.fstat(file).st_ino == _inode(run / "log"),
        )  # asked before the last read
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
