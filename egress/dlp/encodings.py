"""Decodes common encodings within a text, wherever they begin and end in it. Pure.

Trust boundary: the text is hostile. Nothing says which parts are encoded or where encoded data begins, so
every run of an encoding's alphabet that is long enough is decoded at each alignment: this yields three times
as much for base64, five times for base32, and as much again for hex. Only long base64 is decoded from the
start of its run alone.
"""

from __future__ import annotations

import re
from binascii import a2b_base64, unhexlify
from collections.abc import Callable, Iterable, Iterator
from functools import cache

from egress.dlp.expressions import Matcher

APART = b"\n\0\n"  # between texts, so that no match spans two of them: no token shape contains it
GROWTH = 9  # the most that the decoded texts can be longer than the text
LAYERS = 2  # how many nested encodings are decoded
PART = 32 * 1024  # what is searched for encodings at once
OVERLAP = 4 * 1024  # longer than any pattern

_UPPER, _LOWER, _DIGITS = (bytes(range(ord(a), ord(z) + 1)) for a, z in ("AZ", "az", "09"))
_BASE64 = _UPPER + _LOWER + _DIGITS + b"+/-_"
_BASE32 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
_HEX = _DIGITS + b"abcdefABCDEF"
_SPACE = b"\r\n\t "
_TO_STANDARD = bytes.maketrans(b"-_", b"+/")
_TO_BASE_32 = bytes.maketrans(_BASE32 + b"=", b"0123456789abcdefghijklmnopqrstuv0")  # as int() reads it
# Characters. Ten bytes in base32, or eight with their padding; eight in hex and twelve in base64. Hyperscan
# counts up to sixteen of a kind four times as fast as up to thirteen.
_LEAST_64, _LEAST_32, _LEAST_HEX = 16, 16, 16


def _marks(alphabet: bytes) -> bytes:
    """A translation table to three letters: in the alphabet, white space, or neither."""
    table = bytearray(b"." * 256)
    for byte in _SPACE:
        table[byte] = ord("s")
    for byte in alphabet:
        table[byte] = ord("a")
    return bytes(table)


class _Alphabet:
    """Finds runs of one alphabet, `group` characters of which make whole bytes; `zero` stands for no bits."""

    def __init__(self, alphabet: bytes, *, least: int, group: int, zero: bytes) -> None:
        self.table, self._least = _marks(alphabet), b"a" * least
        # long lines of the alphabet, and a short last one
        self._run = re.compile(b"a++(?:s{1,8}+a{%d}a*+)*+(?:s{1,8}+a++)?" % least)
        self._group, self._zero = group, zero

    def runs(self, text: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield each run without its white space, and where it begins."""
        marks = text.translate(self.table)
        start = marks.find(self._least)
        while start >= 0:
            match = self._run.match(marks, start)
            end = match.end() if match else len(text)  # which never is
            yield start, text[start:end].translate(None, _SPACE)
            start = marks.find(self._least, end)

    def joined(self, runs: Iterable[bytes]) -> bytes:
        """Join the runs, each from the beginning of a group and padded with zeros."""
        group, zero = self._group, self._zero
        return b"".join(run + zero * (2 * group - len(run) % group) for run in runs)

    def joined_in(self, text: bytes) -> bytes:
        return self.joined(run for _, run in self.runs(text))


_RUNS_64 = _Alphabet(_BASE64, least=_LEAST_64, group=4, zero=b"A")
_RUNS_32 = _Alphabet(_BASE32 + b"=", least=_LEAST_32, group=8, zero=b"A")
_RUNS_LOWER_32 = _Alphabet(_BASE32.lower() + b"=", least=_LEAST_32, group=8, zero=b"a")
_RUNS_HEX = _Alphabet(_HEX, least=_LEAST_HEX, group=2, zero=b"0")
_LONG = 4 * 1024  # base64 that is decoded at one alignment
_NEAR = 1024


def _from_base64(text: bytes, before: int | None) -> Iterator[bytes]:
    if b"\\" in text:  # lines and slashes in JSON
        text = text.replace(b"\\r", b"").replace(b"\\n", b"\n").replace(b"\\/", b"/")
    anywhere, aligned = [], []
    for start, run in _RUNS_64.runs(text):
        if run.islower() or run.isupper():  # words, hex: one in a thousand runs of base64, if it is short
            continue
        if len(run) <= _LONG or (start == 0 and before is None):
            anywhere.append(run)
        else:
            aligned.append(run if start else b"A" * (before or 0) + run)
    joined = _RUNS_64.joined(anywhere).translate(_TO_STANDARD)
    for shift in range(4 if joined else 0):
        yield a2b_base64(joined[shift : len(joined) - (-shift) % 4])
    if aligned:
        yield a2b_base64(_RUNS_64.joined(aligned).translate(_TO_STANDARD))


def run_before(text: bytes, place: int, before: int | None) -> int | None:
    """How many base64 characters precede this place without a break, modulo 4. None if unknown.

    `before` is the same for the beginning of the text. Lines are multiples of 4.
    """
    for start in (max(0, place - _NEAR), 0):
        marks = text[start:place].translate(_RUNS_64.table)
        stop = max(marks.rfind(b"."), marks.rfind(b"s"))
        if stop >= 0:
            return (len(marks) - stop - 1) % 4
    return None if before is None else (before + place) % 4


def _from_base32(text: bytes) -> Iterator[bytes]:
    if joined := _RUNS_32.joined_in(text):
        bits, size = int(joined.translate(_TO_BASE_32), 32), len(joined) * 5 // 8 + 1
        yield from ((bits << shift).to_bytes(size) for shift in range(8))


def _from_lower_base32(text: bytes) -> Iterator[bytes]:
    yield from _from_base32(_RUNS_LOWER_32.joined_in(text).upper())


def _from_hex(text: bytes) -> Iterator[bytes]:
    joined = _RUNS_HEX.joined_in(text)
    if joined:
        yield unhexlify(joined)
        yield unhexlify(joined[1:-1])


# Up to four bytes together, with or without 0x, and a separator that is not a letter or digit between them.
_GROUP = rb"(?:0[xX])?[0-9A-Fa-f]{2}(?:[0-9A-Fa-f]{2}){0,3}"
_BETWEEN = rb"[^0-9A-Za-z\0]{1,6}"
_GROUPS = re.compile(rb"(?<![0-9A-Za-z])(?:" + _GROUP + _BETWEEN + rb"){3,}" + _GROUP)
_NO_DIGIT = re.compile(rb"0[xX]|[^0-9A-Fa-f]")
# Where such groups are, for Hyperscan: the expression above is exact but slow.
_PLACES_OF_GROUPS = (
    rb"(?:[0-9A-Fa-f]{2}[:,-]){4}",
    rb"(?:[0-9A-Fa-f]{2} ){4}",
    rb"(?:[0-9A-Fa-f]{4} ){3}",
    rb"(?:[0-9A-Fa-f]{8} ){3}",
    rb"0[xX][0-9A-Fa-f]{2,8}[^0-9A-Za-z]{1,6}0[xX]",
)
_LEAST_GROUPED = 17  # characters: two groups of four bytes; of less than four groups nothing is found
_AROUND = 64  # more than four groups


@cache
def _places_of_groups() -> Matcher:
    return Matcher(_PLACES_OF_GROUPS)


def _from_groups_of_hex(text: bytes) -> Iterator[bytes]:
    areas: list[tuple[int, int]] = []
    for place in sorted(end for _, end in _places_of_groups().ends(text)):
        first, last = areas[-1] if areas else (place, -_AROUND)
        if place <= last + _AROUND:
            areas[-1] = first, place
        else:
            areas.append((place, place))
    for first, last in areas:
        for groups in _GROUPS.findall(text[max(0, first - _AROUND) : last + _AROUND]):
            yield unhexlify(_NO_DIGIT.sub(b"", groups))


# The start of each kind of escape, and its possible rest. They are decoded one after the other by splitting
# the text, which is much faster than one expression for all of them.
_DIGITS_OF = {b"%02x" % byte: byte for byte in range(256)}
_DIGITS_OF |= {b"%02X" % byte: byte for byte in range(256)}
_BYTES = {digits: bytes((byte,)) for digits, byte in _DIGITS_OF.items()}
_CHARACTERS = {digits: chr(byte).encode() for digits, byte in _DIGITS_OF.items()}
_TWO_DIGITS = {b"\\u00": _CHARACTERS, b"\\x": _BYTES, b"%": _BYTES}
_HEXADECIMAL, _DECIMAL = 16, 10
_CLOSED = {
    b"\\u{": (re.compile(rb"0{0,4}([0-9A-Fa-f]{1,2})\}"), _HEXADECIMAL),
    b"&#x": (re.compile(rb"0{0,5}([0-9A-Fa-f]{1,2});"), _HEXADECIMAL),
    b"&#X": (re.compile(rb"0{0,5}([0-9A-Fa-f]{1,2});"), _HEXADECIMAL),
    b"&#": (re.compile(rb"0{0,5}([0-9]{1,3});"), _DECIMAL),
}


def _from_escapes(text: bytes) -> Iterator[bytes]:
    for beginning, meanings in _TWO_DIGITS.items():
        first, *others = text.split(beginning)
        if others:
            text = first + b"".join(
                meanings.get(other[:2], beginning + other[:2]) + other[2:] for other in others
            )
    for beginning, (rest, base) in _CLOSED.items():
        first, *others = text.split(beginning)
        if others:
            text = first + b"".join(_closed(beginning, other, rest, base) for other in others)
    yield text


def _closed(beginning: bytes, text: bytes, rest: re.Pattern[bytes], base: int) -> bytes:
    match = rest.match(text)
    return beginning + text if match is None else chr(int(match[1], base)).encode() + text[match.end() :]


def _from_wide_characters(text: bytes) -> Iterator[bytes]:
    """UTF-16 and UTF-32, in either order."""
    yield text.translate(None, b"\0")


# Hints that decoding a text may be worthwhile.
_HINTS: dict[bytes, Callable[[bytes], Iterator[bytes]] | None] = {
    rb"[A-Za-z0-9+/_-]{%d}" % _LEAST_64: None,  # base64, see `undone`
    rb"[A-Z2-7=]{%d}" % _LEAST_32: _from_base32,
    rb"[a-z2-7=]{%d}" % _LEAST_32: _from_lower_base32,
    rb"[0-9A-Fa-f]{%d}" % _LEAST_HEX: _from_hex,
    rb"[0-9A-Fa-fxX\s:,;-]{%d}" % _LEAST_GROUPED: _from_groups_of_hex,
    rb"\\u00[2-7][0-9A-Fa-f]|\\u\{|\\x[2-7][0-9A-Fa-f]|&#[xX0-9]|%[2-7][0-9A-Fa-f]": _from_escapes,
    rb"(?:[\x20-\x7e]\x00){8}|(?:[\x20-\x7e]\x00{3}){8}": _from_wide_characters,
}
_UNDOING = tuple(_HINTS.values())


@cache
def _hints() -> Matcher:
    return Matcher(_HINTS, once=True)


# For most URLs: in a busy process Hyperscan's tables are rarely in the processor's cache.
_SHORT = 256
_SUSPECT = re.compile(rb"[A-Za-z0-9+/_=-]{16}|[0-9A-Fa-fxX\s:,;-]{17}|[\\%\0]|&#")


def is_plain(text: bytes) -> bool:
    """Whether the text cannot contain any of the hints."""
    return _SUSPECT.search(text) is None


def undone(text: bytes, before: int | None) -> bytes:
    """The text with any one encoding in it decoded, one after the other; often nothing.

    `before` is the result of `run_before` for its beginning.
    """
    if len(text) <= _SHORT and is_plain(text):
        return b""
    hints = _hints().ends(text)
    if not hints:
        return b""
    found: list[bytes] = []
    for undo in dict.fromkeys(_UNDOING[number] for number, _ in hints):
        found += _from_base64(text, before) if undo is None else undo(text)
    return APART.join(found)


def layers(text: bytes, before: int | None = 0, *, count: int = LAYERS) -> Iterator[bytes]:
    """Yield all that is encoded in a text of any length, once and then twice, each as a separate text."""
    for start in range(0, len(text), PART):
        decoded = undone(text[max(0, start - OVERLAP) : start + PART], None if start else before)
        if decoded:
            yield decoded
            if count > 1:
                yield from layers(decoded, count=count - 1)
