"""The log of a rebuild, or of a start: written line by line by the process at work, read by every web worker.

The file itself is what they share; a place in it is a number of bytes. What it says is from a build, which
may be an agent's.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from supervise.sanitize import without_nul

STARTING = "starting.log"  # in the bottle's directory: what its last start in the background said
MOST = 4 * 1024**2  # characters
MOST_LINE = 2000


class Log:
    """What it says, line by line, to a private file that the page shows."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._file: IO[str] = os.fdopen(
            os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w", buffering=1
        )
        self._left = MOST

    def __call__(self, line: str) -> None:
        text = without_nul(line[:MOST_LINE])
        if self._left <= 0:
            return
        self._left -= len(text) + 1
        self._file.write(f"{text}\n" if self._left > 0 else "… the log is longer than what is kept of it\n")

    def close(self) -> None:
        self._file.close()


@dataclass(frozen=True, slots=True)
class Part:
    """Whole lines of it, and the place where the next ones will begin."""

    text: str
    offset: int


def end(path: Path, characters: int) -> Part:
    """The last whole lines, as many as fit."""
    try:
        size = path.stat().st_size
    except OSError:
        return Part("", 0)
    part = after(path, max(0, size - 4 * characters), most=4 * characters)
    if len(part.text) <= characters and part.offset <= 4 * characters:
        return part
    return Part(part.text[-characters:].partition("\n")[2], part.offset)


def after(path: Path, offset: int, *, most: int) -> Part:
    """What follows a place, in whole lines and at most so many bytes; nothing is there yet: an empty part."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            found = file.read(most)
    except OSError:
        found = b""
    whole = found[: found.rfind(b"\n") + 1]
    return Part(whole.decode(errors="replace"), offset + len(whole))
