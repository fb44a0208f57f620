"""Git packs made by hand, object by object."""

from __future__ import annotations

import zlib
from hashlib import sha1

_TREE, _BLOB, _BY_DISTANCE, _BY_NAME = 2, 3, 6, 7
_KINDS = {1: b"commit", _TREE: b"tree", _BLOB: b"blob"}


class Pack:
    def __init__(self) -> None:
        self._objects: list[bytes] = []

    @property
    def bytes(self) -> bytes:
        data = b"PACK\0\0\0\2" + len(self._objects).to_bytes(4) + b"".join(self._objects)
        return data + sha1(data).digest()

    def commit(self, message: bytes) -> Pack:
        return self._add(1, message)

    def blob(self, data: bytes) -> Pack:
        return self._add(_BLOB, data)

    def tree(self, *entries: tuple[str, bytes]) -> Pack:
        return self._add(_TREE, tree_of(*entries))

    def change(self, change: bytes, back: int = 1) -> Pack:
        """Of the object so many before."""
        distance = sum(map(len, self._objects[-back:]))
        return self._add(_BY_DISTANCE, change, _distance(distance))

    def change_of(self, name: bytes, change: bytes) -> Pack:
        return self._add(_BY_NAME, change, name)

    def _add(self, kind: int, data: bytes, base: bytes = b"") -> Pack:
        size, head = len(data) >> 4, [kind << 4 | len(data) & 15]
        while size:
            head[-1] |= 0x80
            head.append(size & 0x7F)
            size >>= 7
        self._objects.append(bytes(head) + base + zlib.compress(data))
        return self


def named(kind: str, data: bytes) -> bytes:
    return sha1(b"%b %d\0" % (kind.encode(), len(data)) + data).digest()


def tree_of(*entries: tuple[str, bytes]) -> bytes:
    """Names that end with a slash are of directories."""
    return b"".join(
        (b"40000 " if name.endswith("/") else b"100644 ") + name.rstrip("/").encode() + b"\0" + digest
        for name, digest in entries
    )


def delta(base: bytes, *instructions: tuple[bytes, int]) -> bytes:
    after = sum(size for _, size in instructions)
    return _size(len(base)) + _size(after) + b"".join(code for code, _ in instructions)


def copy(start: int, size: int) -> tuple[bytes, int]:
    given = [*start.to_bytes(4, "little"), *size.to_bytes(3, "little")]
    code = 0x80 | sum(1 << place for place, byte in enumerate(given) if byte)
    return bytes([code, *filter(None, given)]), size


def insert(data: bytes) -> tuple[bytes, int]:
    parts = [data[start : start + 127] for start in range(0, len(data), 127)]
    return b"".join(bytes((len(part),)) + part for part in parts), len(data)


def _size(number: int) -> bytes:
    found = [number & 0x7F]
    while number := number >> 7:
        found[-1] |= 0x80
        found.append(number & 0x7F)
    return bytes(found)


def _distance(number: int) -> bytes:
    found = [number & 0x7F]
    while number := number >> 7:
        number -= 1
        found.append(number & 0x7F | 0x80)
    return bytes(reversed(found))
