"""Git objects: applies deltas, and finds the path of a blob. Pure.

Trust boundary: objects come from a bottle. The result of a delta is as large as the delta declares; callers
check that first. A delta that breaks the rules raises Unreadable.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from hashlib import sha1
from typing import NamedTuple

from egress.dlp.decoding import Unreadable

MOST_OBJECT = 1024 * 1024  # of an object that is kept as a base for deltas
MOST_KEPT = 4 * 1024 * 1024
_MOST_TREES = 512 * 1024
_MOST_DEPTH = 100  # directories
_MOST_SHIFT = 63
_APART = b"\n\0\n"  # between the additions of a delta
_TREE_ENTRY = re.compile(rb"(?:100644|100755|100664|120000|40000) ([^\0/]+)\0(.{20})", re.DOTALL)


class GitObject:
    """A complete object."""

    def __init__(self, kind: bytes, data: bytes) -> None:
        self.kind = kind
        self.data = data

    @cached_property
    def name(self) -> bytes:
        return sha1(b"%b %d\0" % (self.kind, len(self.data)) + self.data, usedforsecurity=False).digest()


class ObjectName(NamedTuple):
    """The name of an object. Without a kind, it is the base of a delta."""

    kind: bytes
    digest: bytes | None


_NAMED_BY = "(git log --all --name-only --find-object={0} names the file)"
_DESCRIPTIONS = {
    b"": f"a change of git object {{0}} {_NAMED_BY}",
    b"blob": f"git object {{0}} {_NAMED_BY}",
    b"tree": "a file name in git tree {0}",
    b"commit": "the message of commit {0}",
    b"tag": "tag {0}",
}


class GitObjects:
    """Keeps the newest objects for deltas that build on them, and trees, which contain the names of files."""

    MEMORY = MOST_KEPT + _MOST_TREES

    def __init__(self) -> None:
        self._kept: dict[int, GitObject] = {}  # by their offset in the pack
        self._unnamed: dict[int, GitObject] = {}
        self._named: dict[bytes, int] = {}
        self._size = 0
        self._trees: list[GitObject] = []
        self._size_of_trees = 0

    def keep(self, place: int, object: GitObject) -> None:
        if object.kind == b"tree" and self._size_of_trees + len(object.data) <= _MOST_TREES:
            self._trees.append(object)
            self._size_of_trees += len(object.data)
        self._kept[place] = self._unnamed[place] = object
        self._size += len(object.data)
        while self._size > MOST_KEPT:
            oldest = next(iter(self._kept))
            self._unnamed.pop(oldest, None)
            self._size -= len(self._kept.pop(oldest).data)

    def base(self, place: int, base: int | bytes) -> GitObject | None:
        """The base at this offset, if it is kept."""
        if isinstance(base, int):
            return self._kept.get(place - base)
        self._named |= {object.name: at for at, object in self._unnamed.items()}
        self._unnamed.clear()
        return self._kept.get(self._named.get(base, -1))

    def described(self, name: ObjectName) -> str:
        """The path of a file, or another description of the object for people."""
        if name.digest is None:
            return "an object of the pack"
        if name.kind in {b"", b"blob"} and (path := self._path_of(name.digest)):
            return path
        return _DESCRIPTIONS[name.kind].format(name.digest.hex())

    def _path_of(self, name: bytes) -> str:
        """The path by a tree that contains it, or empty."""
        parents: dict[bytes, tuple[bytes, bytes]] = {}
        for tree in self._trees:
            for entry in _TREE_ENTRY.finditer(tree.data):
                parents.setdefault(entry[2], (tree.name, entry[1]))
        path: list[str] = []
        while name in parents and len(path) < _MOST_DEPTH:
            name, part = parents[name]
            path.append(part.decode("utf-8", "replace"))
        return "/".join(reversed(path))


class Delta:
    """Reads a delta while it arrives. `before` and `after` are the sizes of its base and of its result."""

    def __init__(self) -> None:
        self.before = self.after = -1
        self._unread = b""

    def feed(self, data: bytes) -> Iterator[Instruction]:
        """Raises Unreadable."""
        self._unread += data
        place = 0
        try:
            if self.after < 0:
                before, end = _size_at(self._unread, 0)
                after, place = _size_at(self._unread, end)
                self.before, self.after = before, after
            while place < len(self._unread):
                instruction, place = _instruction_at(self._unread, place)
                yield instruction
        except IndexError:  # it is incomplete so far
            pass
        self._unread = self._unread[place:]

    def end(self) -> None:
        if self._unread or self.after < 0:
            raise _broken()


class Instruction(NamedTuple):
    """A range to copy from the base, or data to add."""

    start: int
    size: int
    added: bytes = b""


def _size_at(data: bytes, place: int) -> tuple[int, int]:
    size = shift = 0
    while shift <= _MOST_SHIFT:
        size |= (data[place] & 0x7F) << shift
        place += 1
        shift += 7
        if data[place - 1] < 0x80:
            return size, place
    raise _broken()


def _instruction_at(data: bytes, place: int) -> tuple[Instruction, int]:
    """Return the instruction and where the next one begins. Raises IndexError if it is incomplete."""
    code, place, number = data[place], place + 1, 0
    if not code:
        raise _broken()
    if code < 0x80:
        end = place + code
        data[end - 1]
        return Instruction(0, 0, data[place:end]), end
    for byte in range(7):
        if code & 1 << byte:
            number |= data[place] << 8 * byte
            place += 1
    return Instruction(number & 0xFFFFFFFF, number >> 32 or 0x10000), place


def built(base: bytes, delta: bytes) -> bytes:
    """Apply the delta to its base. Raises Unreadable."""
    reader, made = Delta(), bytearray()
    for start, size, added in reader.feed(delta):
        made += added or base[start : start + size]
        if len(made) > reader.after:
            raise _broken()
    reader.end()
    if reader.before != len(base) or reader.after != len(made):
        raise _broken()
    return bytes(made)


def additions(instructions: Iterable[Instruction]) -> bytes:
    """The added data, with a gap where something is copied in between."""
    return b"".join(added or _APART for _, _, added in instructions)


def _broken() -> Unreadable:
    return Unreadable("it holds a git pack that cannot be read")
