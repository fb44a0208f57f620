"""What a git push asks for, and the answer by which git shows its user why it was refused. Pure.

Trust boundary: the request comes from a bottle. git shows nothing of a refusal in the terms of HTTP at this
point, only a report on each of the references that were to be updated.
"""

from __future__ import annotations

from collections.abc import Iterator

REQUEST = b"application/x-git-receive-pack-request"
RESULT = b"application/x-git-receive-pack-result"
_MOST_COMMANDS = 64 * 1024  # bytes, of which the report says something
_LONGEST_LINE = 1000  # with its length, as small as a side band may be
_FLUSH = b"0000"


class Push:
    """Reads the commands before the pack."""

    def __init__(self) -> None:
        self._begun = b""
        self._is_over = False

    def feed(self, data: bytes) -> None:
        if not self._is_over:
            self._begun += data[:_MOST_COMMANDS]
            self._is_over = len(self._begun) >= _MOST_COMMANDS or _FLUSH in self._begun

    def report(self, sentence: str, reason: str) -> bytes | None:
        """The whole answer, or None when git did not ask for a report."""
        commands = list(self._commands())
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

    def _commands(self) -> Iterator[bytes]:
        place = 0
        while (size := _size_at(self._begun, place)) > 4:
            line = self._begun[place + 4 : place + size]
            if line.count(b" ") >= 2 and not line.startswith((b"shallow ", b"push-cert")):
                yield line
            place += size


def _size_at(data: bytes, place: int) -> int:
    digits = data[place : place + 4]
    try:
        return int(digits, 16) if digits.isalnum() and len(digits) == 4 else 0
    except ValueError:
        return 0


def _line(text: bytes) -> bytes:
    return b"%04x" % (len(text) + 4) + text


def _banded(band: int, text: bytes) -> Iterator[bytes]:
    size = _LONGEST_LINE - 5
    return (_line(bytes((band,)) + text[start : start + size]) for start in range(0, len(text), size))
