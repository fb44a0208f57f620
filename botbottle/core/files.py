"""Writing files so that no other user and no reader sees a part of one."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

from botbottle.core import disk_space


def write_private(path: Path, content: str) -> None:
    """Write a file that was never, not even for a moment, readable by others."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        os.fchmod(descriptor, 0o600)
        file.write(content)


def write_atomically(
    path: Path, text: str, *, mode: int = 0o600, synced: bool = True, also_when_full: bool = False
) -> None:
    """Readers see the old file or the new one (synced: also after a power cut). Raises OSError.

    `also_when_full`: where the disk has no room for a new file, the old one is overwritten. Only for files
    whose readers know half of one when they see it.
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
    """In the blocks that the file has already, with empty lines up to its old length.

    Raises OSError. Room for a longer text is taken first, so that a failure leaves the file as it was, but on
    file systems that copy what is overwritten (btrfs, ZFS).
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
