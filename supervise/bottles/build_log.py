"""The log of a rebuild or start: its process writes line by line, every web worker reads.

The file is all they share; a position in it is a number of bytes. Its text is from a build, which may be an
agent's.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from botbottle.core.sanitize import without_nul

STARTING = "starting.log"  # in the bottle's directory: the log of its last start in the background
MOST = 4 * 1024**2  # characters
MOST_LINE = 2000


class Log:
    """Writes lines to a private file that the page shows."""

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
        self._file.write(f"{text}\n" if self._left > 0 else "… the rest of the log is cut off\n")

    def close(self) -> None:
        self._file.close()


@dataclass(frozen=True, slots=True)
class Part:
    """Whole lines of a log, and the position of the next ones."""

    text: str
    offset: int


def end(path: Path, characters: int) -> Part:
    """The last whole lines that fit into `characters`."""
    try:
        size = path.stat().st_size
    except OSError:
        return Part("", 0)
    part = after(path, max(0, size - 4 * characters), most=4 * characters)
    if len(part.text) <= characters and part.offset <= 4 * characters:
        return part
    return Part(part.text[-characters:].partition("\n")[2], part.offset)


def after(path: Path, offset: int, *, most: int) -> Part:
    """Whole lines from a position on, at most `most` bytes; empty while there are none."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            found = file.read(most)
    except OSError:
        found = b""
    whole = found[: found.rfind(b"\n") + 1]
    return Part(whole.decode(errors="replace"), offset + len(whole))
