"""File locks between processes (flock). The kernel frees a lock when its holder ends, however it ends.

A lock file is never removed while it may be in use. Every start of a bottle imports this.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_POLL_SECONDS = 0.01
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC


@contextmanager
def lock(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold the lock exclusively. Raises BlockingIOError when it is taken and `wait` is False."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, _FLAGS, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def lock_shared(path: Path) -> Iterator[None]:
    """Hold an existing lock together with other readers. Raises OSError, and BlockingIOError when taken."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock exclusively. Checks share the lock, so they do not see each other."""
    try:
        with lock_shared(path):
            return False
    except BlockingIOError:
        return True
    except OSError:
        return False


def acquire(path: Path, *, seconds: float = 0.0) -> int:
    """Return a descriptor that holds the lock exclusively until it is closed. Raises BlockingIOError.

    Retries for `seconds`, since `is_locked` holds the lock for a moment.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    deadline = time.monotonic() + seconds
    while True:
        if (descriptor := _try(path)) is not None:
            return descriptor
        if time.monotonic() >= deadline:
            raise BlockingIOError(f"{path} is locked")
        time.sleep(_POLL_SECONDS)


def _try(path: Path) -> int | None:
    """A descriptor with the lock, or None when it is taken. Raises OSError, and then nothing stays open."""
    descriptor = os.open(path, _FLAGS, 0o600)
    is_acquired = False
    try:
        with suppress(BlockingIOError, FileNotFoundError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_acquired = os.fstat(descriptor).st_ino == path.stat().st_ino  # else it was replaced meanwhile
    finally:
        if not is_acquired:
            os.close(descriptor)
    return descriptor if is_acquired else None
