"""What leaves over a WebSocket is searched behind its masks, and arrives as it was sent."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egress.decoding import Unreadable
from egress.dlp import OVERLAP, PROVISIONED, WINDOW, Found, Scanner
from egress.websocket_frames import FrameScan
from tests.egress.steps import finish

SECRET = b"canary-secret-1"
SCANNER = Scanner([SECRET.decode()])
SIZES = st.integers(0, 400) | st.integers(65_000, 90_000)
MASKS = st.binary(min_size=4, max_size=4)


def frame(payload: bytes, *, mask: bytes = b"\x01\xfe\x33\x80", first: int = 0x81) -> bytes:
    size = len(payload)
    if size < 126:
        head = bytes([first, 0x80 | size])
    elif size < 65536:
        head = bytes([first, 0x80 | 126]) + size.to_bytes(2, "big")
    else:
        head = bytes([first, 0x80 | 127]) + size.to_bytes(8, "big")
    return head + mask + bytes(byte ^ mask[place % 4] for place, byte in enumerate(payload))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(SIZES, MASKS), max_size=5), st.lists(st.integers(0, 200_000), max_size=20))
def test_frames_arrive_as_they_were_sent(frames: list[tuple[int, bytes]], cuts: list[int]) -> None:
    sent = b"".join(frame(b"." * size, mask=mask) for size, mask in frames)
    scan = FrameScan(SCANNER)
    places = sorted({cut % (len(sent) + 1) for cut in cuts})
    pieces = [sent[start:end] for start, end in zip([0, *places], [*places, len(sent)], strict=True)]
    assert b"".join(finish(scan.steps(piece, last=False)) for piece in pieces) == sent


@pytest.mark.parametrize("before", [0, 1, 2, 3, 100, 200, 70_000])
@pytest.mark.parametrize("step", [1, 7, 1000, 100_000])
def test_a_secret_behind_a_mask_is_found(before: int, step: int) -> None:
    if step * 500 < before:
        step = 1000
    sent = frame(b"hello") + frame(b"." * before + SECRET + b"." * 50)
    scan, left = FrameScan(SCANNER), b""
    with pytest.raises(Found) as found:
        for start in range(0, len(sent), step):
            left += finish(scan.steps(sent[start : start + step], last=False))
    assert found.value.finding.kind == PROVISIONED
    assert len(left) < sent.index(frame(b"." * before + SECRET + b"." * 50)) + 14 + before


def test_a_secret_over_two_frames_is_found() -> None:
    scan = FrameScan(SCANNER)
    assert finish(scan.steps(frame(SECRET[:6]), last=False))
    with pytest.raises(Found):
        finish(scan.steps(frame(SECRET[6:], first=0x80), last=False))


@pytest.mark.parametrize("between", [0x89, 0x8A, 0x88])
def test_a_secret_that_a_control_frame_interrupts_is_found(between: int) -> None:
    sent = frame(SECRET[:6], first=0x01) + frame(b"zz", first=between) + frame(SECRET[6:], first=0x80)
    with pytest.raises(Found):
        finish(FrameScan(SCANNER).steps(sent, last=False))


def test_a_secret_over_two_pings_is_found() -> None:
    scan = FrameScan(SCANNER)
    finish(scan.steps(frame(SECRET[:6], first=0x89) + frame(b"hello"), last=False))
    with pytest.raises(Found):
        finish(scan.steps(frame(SECRET[6:], first=0x89), last=False))


class Counting(Scanner):
    """Counts what it searches."""

    searched = 0

    def kind_in(self, text: bytes) -> str | None:
        self.searched += len(text)
        return super().kind_in(text)


@pytest.mark.parametrize("first", [0x81, 0x89])
def test_small_frames_are_searched_together(first: int) -> None:
    scanner, sent = Counting(), frame(b"x", first=first) * 20_000
    assert finish(FrameScan(scanner).steps(sent, last=False)) == sent
    assert scanner.searched < 2 * len(sent)


def test_frames_are_read_a_step_at_a_time() -> None:
    scanner, most = Counting(), 0
    for _ in FrameScan(scanner).steps(frame(b"x") * 20_000, last=False):
        most, scanner.searched = max(most, scanner.searched), 0
    assert 0 < most <= 2 * OVERLAP


def test_a_small_frame_waits_until_it_is_whole() -> None:
    scan = FrameScan(SCANNER)
    first, second = frame(b"one"), frame(b"two")
    assert finish(scan.steps(first + second[:-1], last=False)) == first
    assert finish(scan.steps(second[-1:], last=False)) == second


def test_little_of_a_large_frame_is_held() -> None:
    sent = frame(b"x" * 3 * WINDOW)
    scan, left = FrameScan(SCANNER), 0
    for start in range(0, len(sent), 10_000):
        left += len(finish(scan.steps(sent[start : start + 10_000], last=False)))
        assert min(start + 10_000, len(sent)) - left <= OVERLAP


@pytest.mark.parametrize("raw", [b"\x81\x05hello", frame(b"x", first=0xC1), frame(b"x", first=0x91)])
def test_frames_that_cannot_be_read_are_refused(raw: bytes) -> None:
    with pytest.raises(Unreadable):
        finish(FrameScan(SCANNER).steps(raw, last=False))
