"""BOTTLE_HOME: the one directory that holds all state. Everything in it is private to its owner."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from botbottle.core import disk_space
from botbottle.core.environment import BadSetting


def prepare(home: Path) -> Path:
    """Create the directory (0700) or say in one sentence why it cannot be used."""
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        home.chmod(0o700)
    except OSError as error:
        raise BadSetting(f"BOTTLE_HOME={home} cannot be used: {error.strerror}. Choose another.") from error
    if not os.access(home, os.W_OK | os.X_OK):
        raise BadSetting(f"BOTTLE_HOME={home} is not writable. Choose another directory.")
    return home


def write_private(path: Path, content: str) -> None:
    """Write a file that was never, not even for a moment, readable by others."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        os.fchmod(descriptor, 0o600)
        file.write(content)


def write_atomically(
    path: Path, text: str, *, mode: int = 0o600, synced: bool = True, also_when_full: bool = False
) -> None:
    """Replace a file: readers see the old or the new one (synced: also after a power cut). Raises OSError.

    `also_when_full`: if the disk has no room for a new file, overwrite the old one. Only for files whose
    readers detect a half-written one.
    """
    try:
        _replace(path, text, mode, synced=synced)
    except OSError as error:
        if not (also_when_full and disk_space.means_full(error) and path.is_file()):
            raise
        _overwrite(path, text.encode("utf-8"), synced=synced)


def _replace(path: Path, text: str, mode: int, *, synced: bool) -> None:
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            os.fchmod(descriptor, mode)
            file.write(text)
            if synced:
                file.flush()
                os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    if synced:
        _sync_directory(path.parent)


def _overwrite(path: Path, content: bytes, *, synced: bool) -> None:
    """Overwrite the file's present blocks, with empty lines up to its old length. Raises OSError.

    Room for a longer text is allocated first, so that a failure leaves the file as it was, except on file
    systems that copy overwritten blocks (btrfs, ZFS).
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        if len(content) > size:
            _lengthen(descriptor, size, len(content))
        if os.write(descriptor, content.ljust(size, b"\n")) < max(size, len(content)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        if synced:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _lengthen(descriptor: int, old: int, new: int) -> None:
    try:
        os.posix_fallocate(descriptor, old, new - old)
    except OSError:
        os.ftruncate(descriptor, old)  # some of it may have been allocated
        raise


def _sync_directory(path: Path) -> None:
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def secret_key(home: Path) -> str:
    """Django's SECRET_KEY, made once."""
    path = home / "secret_key"
    key = made_once(path, lambda: secrets.token_urlsafe(64))
    if len(key) < 50:
        raise BadSetting(f"{path} is damaged (too short). Remove it to make a new key; sessions end.")
    return key


def made_once(path: Path, make: Callable[[], str]) -> str:
    """A private file's content, made by the first who needs it. Who starts at the same moment agrees."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        candidate = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
        write_private(candidate, make())
        try:
            os.link(candidate, path)
        except FileExistsError:
            pass
        finally:
            candidate.unlink()
        return path.read_text(encoding="utf-8").strip()


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Alone among all processes that hold this file. It stays: without it, two could hold "the" lock."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
