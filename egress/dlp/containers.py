"""Opens containers in a stream: gzip, deflated members of zip archives, git packs, also nested. Pure.

Trust boundary: nothing declares what the stream is. A container is known by its first bytes, wherever they
are; data that only looks like one is passed over. What would become too large, or is too deep, raises
Unreadable.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Protocol

from egress.dlp.decoding import FREE, MAX_DECODED, MAX_RATIO, Unreadable
from egress.dlp.findings import Finding, Found
from egress.dlp.git_packs import MAGIC as PACK
from egress.dlp.git_packs import Pack, Piece

MOST_DEPTH = 4
_GZIP, _MEMBER = b"\x1f\x8b\x08", b"PK\x03\x04"
_LONGEST_MAGIC = 7
_SLICE = 4 * 1024  # what one step reads
_PIECE = 16 * 1024
_GZIP_HEAD, _MEMBER_HEAD = 10, 30
_SYSTEMS = {*range(14), 255}  # compression methods by number
_STORED, _DEFLATED, _ENCRYPTED, _NEWEST_ZIP = 0, 8, 1, 63
_UNKNOWN_SIZE = 0xFFFFFFFF  # in a field of its own, or behind the data
_INFLATING = 48 * 1024  # a window of 32 KB, and tables
_SEARCHING = 64 * 1024  # the overlaps between texts, and what is read at once


class Allowance:
    """How much one body may expand to in all of its containers together, and what they keep meanwhile."""

    def __init__(self, keep: Callable[[int], None]) -> None:
        """`keep` is called with the size of the kept data whenever it changes. It may raise."""
        self.coded = 0
        self._decoded = self._held = 0
        self._keep = keep

    def count(self, size: int) -> None:
        self._decoded += size
        if self._decoded > min(MAX_DECODED, FREE + MAX_RATIO * self.coded):
            raise Unreadable("what is packed in it becomes too large")

    def begin(self, container: Container) -> None:
        """Reserve what the container keeps itself, and what the search in it keeps."""
        self._held += container.MEMORY + _SEARCHING
        self._keep(self._held)

    def end(self, container: Container) -> None:
        self._held -= container.MEMORY + _SEARCHING
        self._keep(self._held)


class SearchedText(Protocol):
    """A text that arrives in pieces. Raises Found."""

    def steps(self, piece: bytes, *, last: bool) -> Iterator[None]: ...


class Container(Protocol):
    """A container that is being read. `rest` is the data after its end."""

    MEMORY: int
    NAMES_PARTS: bool
    rest: bytes | None

    def feed(self, data: bytes) -> Iterator[Piece]: ...

    def mark(self) -> None:
        """Remember the part that ended last, to be named."""

    def marked(self) -> str:
        """The marked part's name, as far as it is known by now; empty before there is one."""


class Deflated:
    """gzip, or a member of a zip archive after its head. Ends at once if the data is neither."""

    MEMORY = _INFLATING + _PIECE
    NAMES_PARTS = False

    def __init__(self, window_bits: int, skipped: int = 0) -> None:
        self.rest: bytes | None = None
        self._skipped = skipped  # the name and more that stand before a member's data
        self._own_magic = 1 if window_bits > 0 else 0  # that precede the fed data
        self._inflating = zlib.decompressobj(window_bits)

    def feed(self, data: bytes) -> Iterator[Piece]:
        coded = data[self._skipped :]
        self._skipped -= len(data) - len(coded)
        while self.rest is None and not self._skipped:
            try:
                piece = self._inflating.decompress(coded, _PIECE)
            except zlib.error:
                self.rest = data[
                    self._own_magic :
                ]  # a container may have been mistaken for a part of this one
                break
            ended = self._inflating.eof
            coded = self._inflating.unused_data if ended else self._inflating.unconsumed_tail
            if ended:
                self.rest = coded
            yield Piece(piece, ended)
            if not (piece or coded):
                break
        self._own_magic = 0

    def mark(self) -> None:
        """Parts have no names here."""

    def marked(self) -> str:
        return ""


class Stored:
    """A stored member of a zip archive: a separate text, which no other one continues."""

    MEMORY = 0
    NAMES_PARTS = False

    def __init__(self, skipped: int, size: int) -> None:
        self.rest: bytes | None = None
        self._skipped, self._missing = skipped, size

    def feed(self, data: bytes) -> Iterator[Piece]:
        text = data[self._skipped :]
        self._skipped -= len(data) - len(text)
        text, rest = text[: self._missing], text[self._missing :]
        self._missing -= len(text)
        if not (self._missing or self._skipped):
            self.rest = rest
        yield Piece(text, self.rest is not None)

    def mark(self) -> None:
        """Parts have no names here."""

    def marked(self) -> str:
        return ""


def beginning_at(data: bytes, place: int) -> tuple[Container | None, int] | None:
    """The container that begins here, if any, and the length of its head. None if more data is needed."""
    if data.startswith(PACK, place):
        version = data[place + len(PACK) : place + len(PACK) + 1]
        return ((Pack() if version in {b"\2", b"\3"} else None), 0) if version else None
    is_gzip = data.startswith(_GZIP, place)
    size = _GZIP_HEAD if is_gzip else _MEMBER_HEAD
    head = data[place : place + size]
    if len(head) < size:
        return None
    if is_gzip:
        return Deflated(31) if head[3] < 32 and head[9] in _SYSTEMS else None, 0
    return _member(head), size


def _member(head: bytes) -> Container | None:
    flags, method = int.from_bytes(head[6:8], "little"), int.from_bytes(head[8:10], "little")
    size = int.from_bytes(head[18:22], "little")
    skipped = int.from_bytes(head[26:28], "little") + int.from_bytes(head[28:30], "little")
    if head[4] > _NEWEST_ZIP or flags & _ENCRYPTED:
        return None
    if method == _DEFLATED:
        return Deflated(-15, skipped)
    return Stored(skipped, size) if method == _STORED and 0 < size < _UNKNOWN_SIZE else None


def first_magic(data: bytes, start: int) -> int:
    """The place where the next container could begin, or -1."""
    found = [place for magic in (_GZIP, _MEMBER, PACK) if (place := data.find(magic, start)) >= 0]
    return min(found, default=-1)


class Containers:
    """Finds the containers in one stream, and has their contents searched part by part."""

    def __init__(self, new_text: Callable[[], SearchedText], allowance: Allowance, depth: int = 0) -> None:
        self._new_text, self._allowance, self._depth = new_text, allowance, depth
        self._unread = b""
        self._open: Container | None = None
        self._text: SearchedText | None = None  # of the open containers
        self._inner: Containers | None = None
        self._found: Found | None = None

    @property
    def suspected(self) -> Finding | None:
        """The finding whose place is still to be named by later data."""
        if self._found is not None:
            return self._found.finding
        return None if self._inner is None else self._inner.suspected

    def steps(self, data: bytes) -> Iterator[None]:
        """Raises Found and Unreadable."""
        for start in range(0, len(data), _PIECE):
            self._unread += data[start : start + _PIECE]
            while self._unread and (self._open is not None or self._begin()):
                part, self._unread = self._unread[:_SLICE], self._unread[_SLICE:]
                yield from self._read(part)

    def end(self) -> None:
        """Raises Found for a finding that was still to be named."""
        if self._found is not None and self._open is not None:
            raise Found(replace(self._found.finding, file=self._open.marked()))
        if self._inner is not None:
            self._inner.end()

    def close(self) -> None:
        if self._inner is not None:
            self._inner.close()
        if self._open is not None:
            self._allowance.end(self._open)
        self._open = self._text = self._inner = None

    def _begin(self) -> bool:
        place = first_magic(self._unread, 0)
        while place >= 0:
            found = beginning_at(self._unread, place)
            if found is None:
                self._unread = self._unread[place:]
                return False
            container, length = found
            if container is not None:
                self._unread = self._unread[place + length :]
                self._start(container)
                return True
            place = first_magic(self._unread, place + 1)
        self._unread = self._unread[1 - _LONGEST_MAGIC :]
        return False

    def _start(self, container: Container) -> None:
        if self._depth == MOST_DEPTH:
            raise Unreadable(f"it holds archives that are packed into each other more than {MOST_DEPTH} deep")
        self._allowance.begin(container)
        self._open = container
        self._next_part()

    def _next_part(self) -> None:
        if self._inner is not None:
            self._inner.end()
            self._inner.close()
        self._text = self._new_text()
        self._inner = Containers(self._new_text, self._allowance, self._depth + 1)

    def _read(self, data: bytes) -> Iterator[None]:
        container = self._open
        assert container is not None  # noqa: S101
        for piece in container.feed(data):
            self._allowance.count(0 if piece.built else len(piece.data))
            if self._found is None:
                yield from self._search(piece)
            yield
            if piece.ends:
                if self._found is not None:
                    container.mark()
                self._next_part()
        if container.rest is not None:
            self.end()
            self._unread = container.rest + self._unread
            self.close()

    def _search(self, piece: Piece) -> Iterator[None]:
        text, inner, container = self._text, self._inner, self._open
        assert text is not None and inner is not None and container is not None  # noqa: S101
        try:
            yield from text.steps(piece.data, last=piece.ends)
            yield from inner.steps(piece.data)
        except Found as found:
            if not container.NAMES_PARTS:
                raise
            self._found = found
