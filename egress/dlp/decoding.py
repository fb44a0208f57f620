"""Decodes content codings piece by piece, within bounds. Pure.

Trust boundary: the coded bytes come from a bottle or an origin and may be built to explode or to be read in
two ways. What cannot be read completely, and as the one thing it claims to be, raises Unreadable.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import brotli
import zstandard

MAX_RATIO = 64  # decoded to coded bytes, beyond the first FREE bytes
FREE = 4 * 1024 * 1024
MAX_DECODED = 1024 * 1024 * 1024
MAX_CODINGS = 2
_PIECE = 64 * 1024
_SLICE = 4 * 1024  # input of one step, so that no step takes long, whatever the data is
_ZSTD_WINDOW = 8 * 1024 * 1024
_ZSTD_SLICE = 256  # can expand to 8 MB at most, which is then counted
_ZSTD_PIECE = 8 * 1024 * 1024
_PLAIN = frozenset({"", "identity", "aws-chunked"})


class Unreadable(ValueError):
    """The text says what is wrong, without any of the content."""


class _Decoder(Protocol):
    def feed(self, coded: bytes) -> Iterator[bytes]: ...

    def end(self) -> None:
        """Raises Unreadable if the coded data is incomplete."""


def codings_of(header: str) -> tuple[str, ...]:
    """The codings that Content-Encoding names, in the order in which they were applied. Raises Unreadable."""
    names = [name.strip().lower().removeprefix("x-") for name in header.split(",")]
    codings = tuple(name for name in names if name not in _PLAIN)
    for name in codings:
        if name not in _DECODERS:
            raise Unreadable("its Content-Encoding is not gzip, deflate, br or zstd")
    if len(codings) > MAX_CODINGS:
        raise Unreadable(f"it has more than {MAX_CODINGS} content codings")
    return codings


def memory_of(codings: Sequence[str]) -> int:
    """How many bytes the decoders of these codings can keep at once, each with its last piece of output."""
    return sum(_MEMORY[name] for name in codings)


class Decoding:
    """Takes coded bytes and yields decoded pieces, some of them empty: each is one step of bounded work."""

    def __init__(self, codings: Sequence[str]) -> None:
        self._decoders = [_DECODERS[name]() for name in reversed(codings)]
        self._coded = 0
        self._decoded = 0

    def feed(self, coded: bytes) -> Iterator[bytes]:
        """Raises Unreadable."""
        self._coded += len(coded)
        yield from self._through(coded, 0)

    def end(self) -> None:
        """Raises Unreadable."""
        for decoder in self._decoders:
            decoder.end()

    def _through(self, coded: bytes, layer: int) -> Iterator[bytes]:
        if layer == len(self._decoders):
            yield coded
            return
        try:
            for start in range(0, len(coded), _SLICE):
                for piece in self._decoders[layer].feed(coded[start : start + _SLICE]):
                    self._count(len(piece))
                    yield from self._through(piece, layer + 1)
                yield b""
        except (zlib.error, brotli.error, zstandard.ZstdError) as error:
            raise Unreadable("it is not what its Content-Encoding says") from error

    def _count(self, size: int) -> None:
        self._decoded += size
        if self._decoded > min(MAX_DECODED, FREE + MAX_RATIO * self._coded):
            raise Unreadable("it becomes too large when it is decoded")


class _Zlib:
    """gzip may consist of several members, one after the other."""

    def __init__(self, window_bits: int, *, members: bool) -> None:
        self._window_bits = window_bits
        self._members = members
        self._object = zlib.decompressobj(window_bits)
        self._begun = False

    def feed(self, coded: bytes) -> Iterator[bytes]:
        self._begun = self._begun or bool(coded)
        while coded or not self._object.eof:
            if self._object.eof:
                if not self._members:
                    raise Unreadable("something follows its compressed data")
                self._object = zlib.decompressobj(self._window_bits)
            piece = self._object.decompress(coded, _PIECE)
            coded = self._object.unused_data if self._object.eof else self._object.unconsumed_tail
            yield piece
            if not (piece or coded):
                return

    def end(self) -> None:
        if self._begun and not self._object.eof:
            raise Unreadable("its compressed data is cut off")


class _Deflate:
    """The format is zlib's; some senders leave out its header."""

    def __init__(self) -> None:
        self._first = b""
        self._inner: _Zlib | None = None

    def feed(self, coded: bytes) -> Iterator[bytes]:
        if self._inner is None:
            self._first += coded
            if len(self._first) < 2:
                return
            wrapped = self._first[0] & 0x0F == 8 and int.from_bytes(self._first[:2], "big") % 31 == 0
            self._inner = _Zlib(15 if wrapped else -15, members=False)
            coded = self._first
        yield from self._inner.feed(coded)

    def end(self) -> None:
        if self._inner is not None:
            self._inner.end()
        elif self._first:
            raise Unreadable("its compressed data is cut off")


class _Brotli:
    def __init__(self) -> None:
        self._object = brotli.Decompressor()
        self._begun = False

    def feed(self, coded: bytes) -> Iterator[bytes]:
        self._begun = self._begun or bool(coded)
        if coded and self._object.is_finished():
            raise Unreadable("something follows its compressed data")
        while True:
            piece = self._object.process(coded, output_buffer_limit=_PIECE)
            coded = b""
            if piece:
                yield piece
            if self._object.is_finished() or (self._object.can_accept_more_data() and not piece):
                return

    def end(self) -> None:
        if self._begun and not self._object.is_finished():
            raise Unreadable("its compressed data is cut off")


class _Zstandard:
    """The library has no limit for the output of one call, so it gets little input at a time."""

    def __init__(self) -> None:
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
        self._object = self._decompressor.decompressobj()
        self._begun = False

    def feed(self, coded: bytes) -> Iterator[bytes]:
        for start in range(0, len(coded), _ZSTD_SLICE):
            rest = coded[start : start + _ZSTD_SLICE]
            while rest:
                if self._object.eof:
                    self._object = self._decompressor.decompressobj()
                self._begun = True
                piece = self._object.decompress(rest)
                rest = self._object.unused_data if self._object.eof else b""
                yield piece

    def end(self) -> None:
        if self._begun and not self._object.eof:
            raise Unreadable("its compressed data is cut off")


_DECODERS: dict[str, Callable[[], _Decoder]] = {
    "gzip": lambda: _Zlib(31, members=True),
    "deflate": _Deflate,
    "br": _Brotli,
    "zstd": _Zstandard,
}
_INFLATING = 48 * 1024  # a window of 32 KB, and tables
_MEMORY = {
    "gzip": _INFLATING + _PIECE,
    "deflate": _INFLATING + _PIECE,
    "br": 16 * 1024 * 1024 + _PIECE,
    "zstd": _ZSTD_WINDOW + _ZSTD_PIECE,
}
