"""Redacts a bottle's secrets in what comes back: each is replaced by asterisks of the same length. Pure.

Trust boundary: the origin knows the secret and may repeat it, in any common encoding and in any pieces.
"""

from __future__ import annotations

from egress.dlp.expressions import Matcher
from egress.dlp.scanner import PART, Steps
from egress.dlp.secret_encodings import LONGEST_FORM

_ANCHOR = 4


class Scrubber:
    """Redacts text that arrives in pieces. Holds back only a possible beginning of a secret, so that events
    pass at once.
    """

    def __init__(self, literals: Matcher) -> None:
        self._literals = literals
        self._kept = b""
        self.count = 0

    def clean(self, text: bytes) -> bytes:
        return self._cover(text, text, 0)

    def _cover(self, cleaned: bytes, part: bytes, start: int) -> bytes:
        """Mask the secrets in the text from `start` on. Returns the same object if there are none."""
        matches = self._literals.ends(part)
        if not matches:
            return cleaned
        self.count += 1
        covered = bytearray(cleaned)
        for number, end in matches:
            size = len(self._literals.expressions[number])
            covered[start + end - size : start + end] = b"*" * size
        return bytes(covered)

    def feed(self, data: bytes, *, last: bool) -> bytes:
        return self._release(self.clean(self._kept + data), last=last)

    def steps(self, data: bytes, *, last: bool) -> Steps:
        """The same in steps, for text that may be long: it can be full of secrets, and each takes time."""
        text = cleaned = self._kept + data
        for end in range(PART, len(text) + PART, PART):
            start = max(0, end - PART - LONGEST_FORM)
            cleaned = self._cover(cleaned, text[start:end], start)
            yield
        return self._release(cleaned, last=last)

    def _release(self, text: bytes, *, last: bool) -> bytes:
        kept = 0 if last else self._begun(text)
        self._kept = text[len(text) - kept :]
        return text[: len(text) - kept]

    def _begun(self, text: bytes) -> int:
        """How many of the last bytes could be the beginning of a secret."""
        end = text[-LONGEST_FORM:].lower()
        return max((_overhang(end, literal) for literal in self._literals.expressions), default=0)


def _overhang(end: bytes, literal: bytes) -> int:
    start = max(0, len(end) - len(literal) + 1)
    while (start := end.find(literal[:_ANCHOR], start)) >= 0:
        if literal.startswith(end[start:]):
            return len(end) - start
        start += 1
    return next((size for size in range(_ANCHOR - 1, 0, -1) if end.endswith(literal[:size])), 0)
