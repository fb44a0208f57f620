"""Content codings: read whole and within bounds, or not at all."""

from __future__ import annotations

import gzip
import random
import tracemalloc
import zlib
from collections.abc import Callable

import brotli
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from egress.dlp.decoding import FREE, Decoding, Unreadable, codings_of, memory_of
from tests.support.strategies import examples

PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": lambda data: brotli.compress(data, quality=5),
    "zstd": zstandard.compress,
}
CODINGS = pytest.mark.parametrize("coding", PACKERS)


def undo(coded: bytes, *codings: str, step: int = 0) -> bytes:
    decoding = Decoding(codings)
    step = step or len(coded) or 1
    starts = range(0, len(coded), step)
    decoded = b"".join(piece for start in starts for piece in decoding.feed(coded[start : start + step]))
    decoding.end()
    return decoded


@CODINGS
@settings(max_examples=examples(30))
@given(size=st.integers(0, 300_000), step=st.integers(1, 70_000), dull=st.booleans())
def test_it_undoes_a_coding_in_any_pieces(coding: str, size: int, step: int, dull: bool) -> None:
    data = b"lorem ipsum " * (size // 12) if dull else random.Random(size).randbytes(size)
    coded = PACKERS[coding](data)
    assert undo(coded, coding, step=max(step, len(coded) // 500)) == data


@pytest.mark.parametrize("first", PACKERS)
@CODINGS
def test_it_undoes_two_codings(first: str, coding: str) -> None:
    data = b"some text" * 50
    assert undo(PACKERS[coding](PACKERS[first](data)), first, coding) == data


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
def test_it_reads_parts_that_follow_each_other(coding: str) -> None:
    coded = PACKERS[coding](b"one ") + PACKERS[coding](b"two")
    assert undo(coded, coding) == undo(coded, coding, step=1) == b"one two"


def test_it_reads_over_a_skippable_frame() -> None:
    skippable = b"\x50\x2a\x4d\x18\x04\0\0\0abcd"
    assert undo(skippable + zstandard.compress(b"text"), "zstd") == b"text"


@CODINGS
def test_it_refuses_what_is_cut_off(coding: str) -> None:
    coded = PACKERS[coding](random.Random(1).randbytes(1000))
    with pytest.raises(Unreadable, match="cut off"):
        undo(coded[:-5], coding)


@CODINGS
def test_it_refuses_what_follows(coding: str) -> None:
    with pytest.raises(Unreadable):
        undo(PACKERS[coding](b"text") + b"and more", coding)


@CODINGS
def test_it_refuses_what_it_is_not(coding: str) -> None:
    with pytest.raises(Unreadable):
        undo(b"Just some text, nothing else.", coding)


@CODINGS
def test_it_refuses_what_explodes(coding: str) -> None:
    coded = PACKERS[coding](bytes(80_000_000))
    tracemalloc.start()
    try:
        with pytest.raises(Unreadable, match="too large"):
            for piece in Decoding([coding]).feed(coded[:65536]):
                assert len(piece) < 10 * 1024 * 1024
        assert tracemalloc.get_traced_memory()[1] < 40 * 1024 * 1024
    finally:
        tracemalloc.stop()


def test_two_codings_share_one_bound() -> None:
    inner = gzip.compress(bytes(30_000_000))
    with pytest.raises(Unreadable, match="too large"):
        undo(gzip.compress(inner), "gzip", "gzip")


def test_ordinary_ratios_are_within_the_bound() -> None:
    numbers = range(0, 1_600_000_000, 7919)
    lines = [f'{{"at": {number}, "message": "served", "id": {number % 977}}}' for number in numbers]
    data = "\n".join(lines).encode()
    assert len(data) > 2 * FREE
    assert undo(gzip.compress(data), "gzip") == data


def test_a_huge_zstd_window_is_refused() -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=26, write_content_size=False)
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    with pytest.raises(Unreadable):
        undo(packer.compress(b"text") + packer.flush(), "zstd")


def test_what_comes_out_at_once_is_counted_beside_the_window() -> None:
    """Blocks of one repeated byte: the largest pieces there are."""
    window = 8 * 1024 * 1024
    head, block = b"\x28\xb5\x2f\xfd\x00\x68", (128 * 1024 << 3 | 1 << 1).to_bytes(3, "little") + b"x"
    coded = (head + block * 64).ljust(65536, b"\0")  # with blocks of nothing, or it would be too large
    largest = max(len(piece) for piece in Decoding(["zstd"]).feed(coded))
    assert window // 2 < largest <= memory_of(["zstd"]) - window


@pytest.mark.parametrize(
    ("header", "codings"),
    [
        ("", ()),
        ("identity", ()),
        ("aws-chunked", ()),
        ("gzip", ("gzip",)),
        ("X-GZIP", ("gzip",)),
        (" gzip , BR ", ("gzip", "br")),
        ("identity, zstd", ("zstd",)),
    ],
)
def test_it_reads_the_header(header: str, codings: tuple[str, ...]) -> None:
    assert codings_of(header) == codings


@pytest.mark.parametrize("header", ["compress", "aes128gcm", "gzip, secret", "gzip;q=1", "gzip, gzip, gzip"])
def test_it_refuses_other_headers(header: str) -> None:
    with pytest.raises(Unreadable):
        codings_of(header)
