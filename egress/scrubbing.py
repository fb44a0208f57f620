"""Takes a bottle's secrets out of what comes back: each is replaced by asterisks of the same length. Pure.

Trust boundary: the origin knows the secret and may repeat it, in any common encoding and in any pieces.
"""

from __future__ import annotations

from .dlp import Matcher
from .secret_forms import LONGEST_FORM

_ANCHOR = 4


class Scrubber:
    """Holds back only what could be the beginning of a secret, so that events pass when they happen."""

    def __init__(self, literals: Matcher) -> None:
        self._literals = literals
        self._kept = b""
        self.count = 0

    def clean(self, text: bytes) -> bytes:
        matches = self._literals.ends(text)
        if not matches:
            return text
        self.count += 1
        cleaned = bytearray(text)
        for number, end in matches:
            size = len(self._literals.expressions[number])
            cleaned[end - size : end] = b"*" * size
        return bytes(cleaned)

    def feed(self, data: bytes, *, last: bool) -> bytes:
        text = self.clean(self._kept + data)
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
