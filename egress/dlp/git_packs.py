"""Reads a git pack object by object while it arrives, deltas included. Pure.

Trust boundary: the pack comes from a bottle and may be built to explode. What cannot be read raises
Unreadable. Of a delta whose base is not in the pack, or is no longer kept, only the additions are read.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from hashlib import sha1
from typing import NamedTuple

from egress.dlp.decoding import FREE, MAX_RATIO, Unreadable
from egress.dlp.git_objects import MOST_OBJECT, Delta, GitObject, GitObjects, ObjectName, additions, built

MAGIC = b"PACK\0\0\0"
MEMORY = GitObjects.MEMORY + 3 * MOST_OBJECT  # a delta, its result, and the object that is being read
_PIECE = 16 * 1024
_TYPES = {1: b"commit", 2: b"tree", 3: b"blob", 4: b"tag"}
_BY_DISTANCE, _BY_NAME = 6, 7
_NAME_SIZES = 20, 32  # SHA-1, SHA-256
_MOST_BITS = 63


class Piece(NamedTuple):
    """A part of the text of one object. `built` marks the result of a delta, which is more than the input."""

    data: bytes
    ends: bool = False
    built: bool = False


class _Head(NamedTuple):
    kind: int
    size: int
    base: int | bytes | None  # the distance to the base, or its name
    length: int  # of the head itself


class Pack:
    """A pack that is being read. `rest` is the data after its end."""

    MEMORY = MEMORY
    NAMES_PARTS = True

    def __init__(self) -> None:
        self.rest: bytes | None = None
        self._last: ObjectName | None = None
        self._marked: ObjectName | None = None
        self._unread = b""
        self._place = 0  # of the unread data
        self._objects = GitObjects()
        self._missing = -1  # objects; unknown until the head was read
        self._entry: _Whole | _Delta | None = None
        self._built = 0

    def feed(self, data: bytes) -> Iterator[Piece]:
        """Raises Unreadable."""
        self._unread += data
        try:
            while self._entry is not None or self._begin():
                yield from self._go_on()
                if self._entry is not None:
                    return
        except zlib.error as error:
            raise _unreadable() from error

    def mark(self) -> None:
        """Remember the object that ended last, to be named."""
        self._marked = self._marked or self._last

    def marked(self) -> str:
        """The marked object's path, if a tree with it was read; otherwise another description for people."""
        return "" if self._marked is None else self._objects.described(self._marked)

    def _take(self, count: int) -> bytes:
        taken, self._unread = self._unread[:count], self._unread[count:]
        self._place += count
        return taken

    def _begin(self) -> bool:
        """Return False if more data is needed, or the last object was read."""
        if self._missing < 0:
            if len(self._unread) < 12:
                return False
            self._missing = int.from_bytes(self._take(12)[8:])
        if not self._missing:
            self.rest, self._unread = self._unread, b""
            return False
        place = self._place
        head = _head_of(self._unread)
        if head is None:
            return False
        self._take(head.length)
        if head.base is None:
            self._entry = _Whole(place, _TYPES[head.kind], head.size)
        else:
            base = self._objects.base(place, head.base)
            self._entry = _Delta(place, base, head.base if isinstance(head.base, bytes) else None, head.size)
        self._missing -= 1
        return True

    def _go_on(self) -> Iterator[Piece]:
        entry = self._entry
        assert entry is not None  # noqa: S101
        while not entry.inflating.eof:
            data = entry.inflating.decompress(self._unread, _PIECE)
            entry.missing -= len(data)
            if entry.missing < 0:
                raise _unreadable()
            left = entry.inflating.unused_data if entry.inflating.eof else entry.inflating.unconsumed_tail
            self._take(len(self._unread) - len(left))
            if data:
                yield from entry.read(data)
            elif not self._unread and not entry.inflating.eof:
                return
        self._entry = None
        yield from self._end(entry)

    def _end(self, entry: _Whole | _Delta) -> Iterator[Piece]:
        if isinstance(entry, _Whole):
            if entry.whole is not None:
                self._objects.keep(entry.place, entry.whole)
            self._last = ObjectName(entry.kind, entry.digest.digest())
        else:
            made = self._made(entry)
            if made is None:
                yield from entry.added()
                self._last = ObjectName(b"", entry.base_name)
            else:
                for start in range(0, len(made.data), _PIECE):
                    yield Piece(made.data[start : start + _PIECE], built=True)
                self._objects.keep(entry.place, made)
                self._last = ObjectName(made.kind, made.name)
        yield Piece(b"", ends=True)

    def _made(self, entry: _Delta) -> GitObject | None:
        """The result of the delta, unless it is too large or its base is not kept."""
        if entry.base is None or entry.whole is None:
            return None
        reader = Delta()
        next(reader.feed(entry.whole), None)
        if reader.after > MOST_OBJECT or self._built + reader.after > FREE + MAX_RATIO * self._place:
            return None
        self._built += reader.after
        return GitObject(entry.base.kind, built(entry.base.data, entry.whole))


class _Whole:
    """An object that is stored completely."""

    def __init__(self, place: int, kind: bytes, size: int) -> None:
        self.place, self.kind, self.missing = place, kind, size
        self.inflating = zlib.decompressobj()
        self.digest = sha1(b"%b %d\0" % (kind, size), usedforsecurity=False)
        self._data: bytearray | None = bytearray() if size <= MOST_OBJECT else None

    def read(self, data: bytes) -> Iterator[Piece]:
        self.digest.update(data)
        if self._data is not None:
            self._data += data
        yield Piece(data)

    @property
    def whole(self) -> GitObject | None:
        return None if self._data is None else GitObject(self.kind, bytes(self._data))


class _Delta:
    """A delta. Kept until it is complete, unless it is too long or its base is unknown."""

    def __init__(self, place: int, base: GitObject | None, base_name: bytes | None, size: int) -> None:
        self.place, self.base, self.base_name, self.missing = place, base, base_name, size
        self.inflating = zlib.decompressobj()
        self._data: bytearray | None = None if base is None or size > MOST_OBJECT else bytearray()
        self._reader = Delta()

    @property
    def whole(self) -> bytes | None:
        return None if self._data is None else bytes(self._data)

    def read(self, data: bytes) -> Iterator[Piece]:
        if self._data is None:
            yield Piece(additions(self._reader.feed(data)))
        else:
            self._data += data

    def added(self) -> Iterator[Piece]:
        """The kept part of it, as additions only."""
        kept = additions(self._reader.feed(bytes(self._data or b"")))
        for start in range(0, len(kept), _PIECE):
            yield Piece(kept[start : start + _PIECE])


def _head_of(data: bytes) -> _Head | None:
    """Read an object's head, or return None if it is incomplete. Raises Unreadable."""
    try:
        kind, size, place = data[0] >> 4 & 7, data[0] & 15, 0
        while data[place] & 0x80:
            place += 1
            size |= (data[place] & 0x7F) << 7 * place - 3
            if place > _MOST_BITS // 7:
                raise _unreadable()
        place += 1
        if kind in _TYPES:
            return _Head(kind, size, None, place)
        if kind == _BY_DISTANCE:
            distance, place = _distance_at(data, place)
            return _Head(kind, size, distance, place)
        if kind != _BY_NAME:
            raise _unreadable()
        length = next((length for length in _NAME_SIZES if _is_zlib(data, place + length)), None)
    except IndexError:
        return None
    if length is None:
        raise _unreadable()
    return _Head(kind, size, data[place : place + length], place + length)


def _distance_at(data: bytes, place: int) -> tuple[int, int]:
    distance, end = data[place] & 0x7F, place + 1
    while data[end - 1] & 0x80:
        distance = (distance + 1) << 7 | data[end] & 0x7F
        end += 1
        if end - place > _MOST_BITS // 7:
            raise _unreadable()
    return distance, end


def _is_zlib(data: bytes, place: int) -> bool:
    return data[place] & 15 == 8 and (data[place] << 8 | data[place + 1]) % 31 == 0


def _unreadable() -> Unreadable:
    return Unreadable("it holds a git pack that cannot be read")
