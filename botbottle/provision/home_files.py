"""The operator's directory of configuration files that are copied into the agent's home."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from botbottle.core.plan_types import HOME_INSIDE, File

MAX_FILES, MAX_BYTES = 500, 4 * 1024 * 1024


def home_files(source: Path) -> tuple[File, ...]:
    """Read the directory's files. Raises ValueError for links, binary files and too large ones."""
    found: list[File] = []
    size = 0
    for path in walked(source):
        kind = path.lstat().st_mode
        if not stat.S_ISREG(kind):
            raise ValueError(f"{path} is a link or not a file. Put a copy there, or leave it out.")
        name = path.relative_to(source).as_posix()
        size += path.stat().st_size
        if len(found) == MAX_FILES or size > MAX_BYTES:
            raise ValueError(
                f"{source} has more than {MAX_FILES} files or {MAX_BYTES // 1024**2} MiB. It is for"
                " configuration: mount the rest."
            )
        found.append(File(f"{HOME_INSIDE}/{name}", _text(path, name), stat.S_IMODE(kind) & 0o777 | 0o600))
    return tuple(found)


def walked(source: Path, *, directories: bool = False) -> Iterator[Path]:
    """Every file and every link, in a fixed order."""
    for directory, folders, names in os.walk(source, onerror=_refuse):
        folders.sort()
        if directories:
            yield Path(directory)
        links = [name for name in folders if Path(directory, name).is_symlink()]
        for name in sorted([*names, *links]):
            yield Path(directory, name)


def _text(path: Path, name: str) -> str:
    if not name.isprintable():
        raise ValueError(f"{str(path)!a} has a name that cannot be shown. Rename it.")
    try:
        with path.open(encoding="utf-8", newline="") as file:  # unchanged, with its own line ends
            return file.read()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not text in UTF-8. Mount it instead.") from error
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}.") from error


def _refuse(error: OSError) -> None:
    raise ValueError(f"{error.filename} cannot be read: {error.strerror}.") from error
