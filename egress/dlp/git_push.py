"""Reads a git push, and makes the response by which git tells its user why it was refused. Pure.

Trust boundary: the request comes from a bottle. At this point git shows nothing of an HTTP refusal, only a
report on each of the references that were to be updated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

REQUEST = b"application/x-git-receive-pack-request"
RESULT = b"application/x-git-receive-pack-result"
_MOST_COMMANDS = 64 * 1024  # bytes of commands that the report covers
_LONGEST_LINE = 1000  # with its length, as small as a side band may be
_FLUSH = b"0000"
_DIGITS = re.compile(rb"[0-9a-fA-F]{4}")


class Push:
    """Reads the commands before the pack."""

    def __init__(self) -> None:
        self._begun = b""
        self._lines: list[bytes] = []
        self._is_over = False
        self._room = _MOST_COMMANDS

    def feed(self, data: bytes) -> None:
        if self._is_over:
            return
        self._begun += data[: self._room]
        self._room -= len(data)
        while (size := _size_of(self._begun)) > 4 and len(self._begun) >= size:
            self._lines.append(self._begun[4:size])
            self._begun = self._begun[size:]
        # The commands end at anything but an incomplete line.
        self._is_over = self._room <= 0 or (len(self._begun) >= 4 and size <= 4)

    def report(self, sentence: str, reason: str) -> bytes | None:
        """The whole response, or None if git did not ask for a report."""
        commands = [line for line in self._lines if _is_command(line)]
        names, _, capabilities = b"".join(commands[:1]).partition(b"\0")
        wanted = set(capabilities.split())
        if not wanted & {b"report-status", b"report-status-v2"}:
            return None
        references = [command.split(b" ", 2)[-1] for command in (names, *commands[1:])]
        why = reason.encode("ascii", "replace")
        lines = [b"unpack ok\n", *(b"ng %b %b\n" % (name.rstrip(b"\n"), why) for name in references)]
        report = b"".join(_line(line[:_LONGEST_LINE]) for line in lines) + _FLUSH
        if not wanted & {b"side-band", b"side-band-64k"}:
            return report
        message = sentence.encode("ascii", "replace") + b"\n"
        return b"".join([*_banded(2, message), *_banded(1, report), _FLUSH])


def _is_command(line: bytes) -> bool:
    return line.count(b" ") >= 2 and not line.startswith((b"shallow ", b"push-cert"))


def _size_of(line: bytes) -> int:
    """The declared size of a line; 0 if it has none."""
    digits = line[:4]
    return int(digits, 16) if _DIGITS.fullmatch(digits) else 0


def _line(text: bytes) -> bytes:
    return b"%04x" % (len(text) + 4) + text


def _banded(band: int, text: bytes) -> Iterator[bytes]:
    size = _LONGEST_LINE - 5
    return (_line(bytes((band,)) + text[start : start + size]) for start in range(0, len(text), size))
