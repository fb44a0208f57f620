"""A push is answered in git's own terms, as git's own server would."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egress.dlp.git_push import Push

OLD, NEW = "0" * 40, "1" * 40


def line(text: str) -> bytes:
    return b"%04x" % (len(text.encode()) + 4) + text.encode()


def begun(*references: str, capabilities: str = " report-status side-band-64k agent=git/2.39") -> bytes:
    first, *others = (f"{OLD} {NEW} {reference}" for reference in references)
    return line(f"{first}\0{capabilities}") + b"".join(map(line, others)) + b"0000PACK\0\0\0\2"


def report(request: bytes, size: int = 0) -> bytes | None:
    push, size = Push(), size or len(request) or 1
    for start in range(0, len(request), size):
        push.feed(request[start : start + size])
    return push.report("egress refused (dlp): why.", "see a.txt")


@pytest.mark.parametrize("size", [0, 1, 50])
def test_each_reference_is_told_why_and_the_user_in_full(size: int) -> None:
    told = report(begun("refs/heads/main", "refs/tags/v1"), size)
    inner = line("unpack ok\n") + line("ng refs/heads/main see a.txt\n") + line("ng refs/tags/v1 see a.txt\n")
    assert told == line("\2egress refused (dlp): why.\n") + line("\1" + (inner + b"0000").decode()) + b"0000"


def test_without_a_side_band_there_is_the_report_alone() -> None:
    told = report(begun("refs/heads/main", capabilities="report-status"))
    assert told == line("unpack ok\n") + line("ng refs/heads/main see a.txt\n") + b"0000"


def test_whoever_wants_no_report_gets_none() -> None:
    assert report(begun("refs/heads/main", capabilities="delete-refs")) is None
    assert report(b"0000") is None
    assert report(b"") is None


def test_no_packet_is_longer_than_any_git_takes() -> None:
    told = report(begun(*(f"refs/heads/{'x' * 900}{number}" for number in range(20)))) or b""
    place, sizes = 0, []
    while size := int(told[place : place + 4], 16):
        sizes.append(size)
        place += size
    assert max(sizes) <= 1000 and place + 4 == len(told)


@given(st.binary(max_size=300))
def test_any_request_is_answered_or_not(request: bytes) -> None:
    assert report(request) is None or b"unpack ok" in (report(request) or b"")
