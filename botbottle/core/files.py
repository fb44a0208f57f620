"""Writes files so that no other user and no reader sees half of one."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

from botbottle.core import disk_space


def write_private(path: Path, content: str) -> None:
    """Write a file that is never readable by others, not even for a moment."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        os.fchmod(descriptor, 0o600)
        file.write(content)


def write_atomically(
    path: Path, text: str, *, mode: int = 0o600, synced: bool = True, also_when_full: bool = False
) -> None:
    """Replace a file: readers see the old one or the new one. Raises OSError.

    `synced`: also after a power cut. `also_when_full`: overwrite the old file where the disk has no room for
    a new one; only for files whose readers detect half a file.
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
    """Overwrite the file's blocks in place, padded with empty lines to its old length. Raises OSError.

    Room for a longer text is reserved first, so that a failure leaves the file as it was, except on file
    systems that copy what is overwritten (btrfs, ZFS).
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
        os.ftruncate(descriptor, old)  # some of it may have been taken
        raise


def _sync_directory(path: Path) -> None:
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
