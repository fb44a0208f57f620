"""Containers that nobody announced: known by their first bytes, opened within bounds, in any pieces."""

from __future__ import annotations

import gzip
import io
import random
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egress.dlp.containers import MOST_DEPTH
from egress.dlp.decoding import FREE, Unreadable
from egress.dlp.git_packs import MEMORY
from egress.dlp.scanner import PROVISIONED, WINDOW, BodyScan, Finding, Found, Scanner, memory_of_scan
from tests.support.git_packs import Pack, delta, insert
from tests.support.steps import finish
from tests.support.strategies import examples

SECRET = b"correct-Horse/battery+staple"
SCANNER = Scanner([SECRET.decode()])
NOISE = random.Random(1).randbytes(300_000)
FOUND = Finding(PROVISIONED, "body")


def leave(body: bytes, size: int = 0, **given: object) -> tuple[bytes, Finding | None]:
    """What had left when the scan was over, and what it found, wherever."""
    search, left, size = BodyScan(SCANNER, **given), b"", size or len(body) or 1  # type: ignore[arg-type]
    try:
        for start in range(0, len(body), size):
            left += finish(search.steps(body[start : start + size], last=False))
        left += finish(search.steps(b"", last=True))
    except Found as found:
        return left, Finding(found.finding.kind, found.finding.where)
    return left, None


def zipped(*members: bytes, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for number, data in enumerate(members):
            archive.writestr(f"{number}.txt", data)
    return file.getvalue()


PACKING: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "zip": lambda data: zipped(b"first", data, b"last"),
    "stored zip": lambda data: zipped(b"first", data, method=zipfile.ZIP_STORED),
    "pack": lambda data: Pack().blob(b"first").blob(data).blob(b"last").bytes,
    "packed delta": lambda data: Pack().blob(b"x").change(delta(b"x", insert(data))).bytes,
}


@pytest.mark.parametrize("name", PACKING)
@settings(max_examples=examples(25))
@given(before=st.integers(0, 150_000), inside=st.integers(0, 150_000), size=st.integers(200, 100_000))
def test_a_secret_is_found_wherever_it_is_in_whatever_pieces(
    name: str, before: int, inside: int, size: int
) -> None:
    body = NOISE[:before] + PACKING[name](NOISE[-inside:] + b" " + SECRET + b" " + NOISE[:1000])
    left, finding = leave(body, size)
    assert finding == FOUND
    assert SECRET not in left and left == body[: len(left)]
    clean = NOISE[:before] + PACKING[name](NOISE[:inside])
    assert leave(clean, size) == (clean, None)


@pytest.mark.parametrize("outer", PACKING)
@pytest.mark.parametrize("inner", PACKING)
def test_what_is_in_one_is_opened_too(outer: str, inner: str) -> None:
    body = PACKING[outer](NOISE[:5000] + PACKING[inner](SECRET) + b" and more")
    assert leave(body)[1] == leave(body, 10)[1] == FOUND


def test_the_parts_of_one_are_texts_of_their_own() -> None:
    half = len(SECRET) // 2
    for pack in (zipped(SECRET[:half], SECRET[half:]), Pack().blob(SECRET[:half]).blob(SECRET[half:]).bytes):
        assert leave(pack) == (pack, None)


def test_one_follows_the_other() -> None:
    harmless = gzip.compress(b"one") + zipped(b"two") + Pack().blob(b"three").bytes
    assert leave(harmless * 3 + gzip.compress(SECRET))[1] == FOUND
    assert leave(harmless * 3) == (harmless * 3, None)


LOOKALIKES = {
    "gzip": b"\x1f\x8b\x08\0\0\0\0\0\0\x03",
    "gzip, no such flags": b"\x1f\x8b\x08\xff\0\0\0\0\0\x03",
    "zip": b"PK\x03\x04\x14\0\0\0\x08\0" + bytes(20),
    "zip, no such version": b"PK\x03\x04\xff\0\0\0\x08\0" + bytes(20),
    "zip, encrypted": b"PK\x03\x04\x14\0\x01\0\x08\0" + bytes(20),
    "pack, no such version": b"PACK\0\0\0\x07\0\0\0\x01",
}


@pytest.mark.parametrize("name", LOOKALIKES)
@pytest.mark.parametrize("size", [0, 1, 1000])
def test_what_only_looks_like_one_is_passed_over(name: str, size: int) -> None:
    looks = LOOKALIKES[name]
    harmless = looks + b"\xff no container \xff " * 100 + looks
    assert leave(harmless, size) == (harmless, None)
    assert leave(harmless + gzip.compress(SECRET), size)[1] == FOUND


@pytest.mark.parametrize("name", ["gzip", "zip", "pack"])
def test_one_that_is_cut_off_leaves(name: str) -> None:
    """A file may travel in several requests."""
    body = PACKING[name](NOISE)[:100_000]
    assert leave(body, 5000) == (body, None)


@pytest.mark.parametrize("outer", PACKING)
def test_what_a_part_that_is_cut_off_holds_is_found(outer: str) -> None:
    cut = Pack().blob(SECRET).blob(NOISE[:5000]).bytes[:-3000]
    assert leave(PACKING[outer](cut))[1] == leave(PACKING[outer](cut), 100)[1] == FOUND
    assert leave(cut)[1] == FOUND


def nested(depth: int) -> bytes:
    body = SECRET
    for level in range(depth):
        body = gzip.compress(body) if level % 2 else zipped(body)
    return body


def test_so_many_are_opened_within_each_other_and_more_do_not_leave() -> None:
    assert leave(nested(MOST_DEPTH))[1] == FOUND
    with pytest.raises(Unreadable, match="packed into each other more than 4 deep"):
        leave(nested(MOST_DEPTH + 1))


@pytest.mark.parametrize("name", ["gzip", "zip"])
def test_what_explodes_does_not_leave(name: str) -> None:
    body = PACKING[name](bytes(3 * FREE + 200_000))
    tracemalloc.start()
    try:
        with pytest.raises(Unreadable, match="becomes too large"):
            leave(body)
        assert tracemalloc.get_traced_memory()[1] < 3 * 1024 * 1024
    finally:
        tracemalloc.stop()


def test_all_containers_share_one_bound() -> None:
    inner = gzip.compress(bytes(FREE // 2))
    assert leave(zipped(inner))[1] is None
    with pytest.raises(Unreadable, match="becomes too large"):
        leave(zipped(inner, inner, inner))


def test_what_is_open_is_counted_as_long_as_it_is() -> None:
    told: list[int] = []
    body = zipped(NOISE[:5000], gzip.compress(NOISE[:5000])) + Pack().blob(b"x").bytes
    assert leave(body, 100, keep=told.append)[1] is None
    assert told[-1] == 0
    assert MEMORY <= max(told) < MEMORY + 100_000
    assert max(told[: told.index(max(told))]) < 300_000


def test_it_is_not_opened_where_there_is_no_room() -> None:
    def full(size: int) -> None:
        raise MemoryError(size)

    with pytest.raises(MemoryError):
        leave(gzip.compress(b"x"), keep=full)
    assert leave(b"no container", keep=full) == (b"no container", None)


@pytest.mark.parametrize("name", PACKING)
def test_no_more_is_kept_than_is_counted(name: str) -> None:
    body, told, most = PACKING[name](NOISE), [0], 0
    tracemalloc.start()
    try:
        search = BodyScan(SCANNER, keep=told.append)
        for start in range(0, len(body), 1000):
            for _ in search.steps(body[start : start + 1000], last=False):
                kept = tracemalloc.get_traced_memory()[0] - told[-1]
                most = max(most, kept)
    finally:
        tracemalloc.stop()
    assert WINDOW < most <= memory_of_scan((), -1) + 1000


def test_with_a_content_encoding_only_what_is_decoded_is_opened() -> None:
    inner = zipped(SECRET)
    assert leave(gzip.compress(inner), codings=("gzip",))[1] == FOUND
    assert leave(zlib.compress(inner), codings=("deflate",))[1] == FOUND


def test_what_comes_back_is_not_opened() -> None:
    body = gzip.compress(SECRET)
    assert leave(body, secrets_only=True) == (body, None)
