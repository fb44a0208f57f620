"""What leaves over a WebSocket is searched behind its masks; what comes back is cleaned by messages."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egress.dlp.decoding import Unreadable
from egress.dlp.encodings import GROWTH
from egress.dlp.scanner import OVERLAP, PROVISIONED, WINDOW, Found, Scanner
from egress.dlp.websocket import MEMORY_OF_FRAMES, FrameScan, FrameScrub
from tests.support.steps import finish
from tests.support.strategies import examples

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


@settings(max_examples=examples(60))
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
    assert scanner.searched < (2 + GROWTH) * len(sent)


def test_frames_are_read_a_step_at_a_time() -> None:
    scanner, most = Counting(), 0
    for _ in FrameScan(scanner).steps(frame(b"x") * 20_000, last=False):
        most, scanner.searched = max(most, scanner.searched), 0
    assert 0 < most <= (1 + GROWTH) * 2 * OVERLAP


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


# --- what comes back


def served(payload: bytes, *, first: int = 0x81) -> bytes:
    """A server's frame, which has no mask."""
    size = len(payload)
    if size < 126:
        return bytes([first, size]) + payload
    if size < 65536:
        return bytes([first, 126]) + size.to_bytes(2, "big") + payload
    return bytes([first, 127]) + size.to_bytes(8, "big") + payload


def read(stream: bytes) -> tuple[list[tuple[int, bytes]], list[tuple[int, bytes]]]:
    """The messages and the control frames in it, by their opcodes."""
    messages: list[tuple[int, bytes]] = []
    controls: list[tuple[int, bytes]] = []
    place, parts, opcode = 0, b"", 0
    while place < len(stream):
        first, size, place = stream[place], stream[place + 1], place + 2
        more = {126: 2, 127: 8}.get(size, 0)
        size = int.from_bytes(stream[place : place + more], "big") if more else size
        payload, place = stream[place + more : place + more + size], place + more + size
        assert len(payload) == size
        if first & 0x08:
            controls.append((first & 0x0F, payload))
            continue
        assert (first & 0x0F == 0) is bool(opcode)
        opcode, parts = opcode or first & 0x0F, parts + payload
        if first & 0x80:
            messages.append((opcode, parts))
            opcode, parts = 0, b""
    assert opcode == 0
    return messages, controls


def cleaned(stream: bytes, cuts: Sequence[int] = ()) -> bytes:
    scrub = FrameScrub(SCANNER.literals)
    places = sorted({cut % (len(stream) + 1) for cut in cuts})
    pieces = [stream[start:end] for start, end in zip([0, *places], [*places, len(stream)], strict=True)]
    return b"".join(finish(scrub.steps(piece)) for piece in pieces)


STARS = b"*" * len(SECRET)


def test_a_message_that_ends_as_a_secret_begins_is_not_held_back() -> None:
    for letter in (bytes([code]) for code in range(256)):
        for message in (served(b"ends in " + letter), served(b"", first=0x01) + served(letter, first=0x80)):
            assert read(cleaned(message)) == read(message), letter


@pytest.mark.parametrize("cut", range(1, len(SECRET)))
def test_a_secret_over_two_frames_of_a_message_is_covered(cut: int) -> None:
    ping = served(b"still there?", first=0x89)
    message = served(b"it is " + SECRET[:cut], first=0x01) + ping + served(SECRET[cut:] + b".", first=0x80)
    assert read(cleaned(message)) == ([(1, b"it is " + STARS + b".")], [(9, b"still there?")])


@pytest.mark.parametrize("before", [0, 100, 65_530, 70_000, 200_000])
@pytest.mark.parametrize("cut", [1000, 65_537])
def test_a_secret_in_a_long_frame_is_covered(before: int, cut: int) -> None:
    message = served(b"." * before + SECRET + b"." * 70_000, first=0x82)
    found = cleaned(message, list(range(0, len(message), cut)))
    assert read(found) == ([(2, b"." * before + STARS + b"." * 70_000)], [])


def test_a_secret_in_a_control_frame_is_covered() -> None:
    assert read(cleaned(served(SECRET, first=0x88))) == ([], [(8, STARS)])


def test_two_messages_are_two_texts() -> None:
    messages = served(SECRET[:6]) + served(SECRET[6:])
    assert cleaned(messages) == messages


@settings(max_examples=examples(100))
@given(
    st.lists(
        st.lists(
            st.sampled_from([b"", SECRET, SECRET[:4], SECRET[4:], b"c", b"." * 70_000])
            | st.binary(max_size=300),
            min_size=1,
            max_size=4,
        ),
        max_size=4,
    ),
    st.lists(st.integers(0, 400_000), max_size=20),
)
def test_messages_arrive_whole_and_clean(messages: list[list[bytes]], cuts: list[int]) -> None:
    stream = b""
    for parts in messages:
        for number, part in enumerate(parts):
            stream += served(part, first=(0 if number else 2) | (0x80 if number == len(parts) - 1 else 0))
    found, _ = read(cleaned(stream, cuts))
    assert [opcode for opcode, _ in found] == [2] * len(messages)
    for (_, text), parts in zip(found, messages, strict=True):
        whole = b"".join(parts)
        assert len(text) == len(whole)
        assert SECRET not in text
        if SCANNER.literals.first(whole) is None:
            assert text == whole


@pytest.mark.parametrize(
    "stream",
    [
        frame(b"masked"),
        served(b"compressed", first=0xC1),
        served(b"x" * 126, first=0x89),
        served(b"half a ping", first=0x09),
        served(b"goes on", first=0x80),
        served(b"one", first=0x01) + served(b"another", first=0x81),
    ],
    ids=["masked", "reserved bit", "long control", "control in parts", "no beginning", "one within another"],
)
def test_what_no_server_may_send_ends_it(stream: bytes) -> None:
    with pytest.raises(Unreadable):
        cleaned(stream)


def test_what_is_not_whole_yet_is_kept_within_bounds() -> None:
    scrub = FrameScrub(SCANNER.literals)
    finish(scrub.steps(served(b"." * WINDOW)[:-1]))
    assert len(scrub._held) <= WINDOW + 14
    scrub = FrameScrub(SCANNER.literals)
    finish(scrub.steps(served(b"." * 1_000_000)[:-1]))
    assert len(scrub._held) == 0


def test_no_step_cleans_many_frames() -> None:
    """Thousands fit into one part, and whoever waits for a turn would wait for all of them."""
    for frames in (served(b"", first=0x89) * 1000, served(b"x") * 1000):
        assert sum(1 for _ in FrameScrub(SCANNER.literals).steps(frames)) >= 1000


def test_parts_of_a_message_that_arrive_together_are_cleaned_together() -> None:
    message = served(b".", first=0x01) + served(b".", first=0x00) * 5000 + served(b"", first=0x80)
    clean = cleaned(message)
    assert read(clean) == ([(1, b"." * 5001)], [])
    assert len(clean) < 5100  # and not three bytes for each


def test_no_more_is_kept_of_both_ways_than_is_counted() -> None:
    """A long message, a ping, and a frame that only lacks its last byte."""
    text = b"\r\n." * (WINDOW // 3)
    leaving, coming = (
        make(text) + make(b"." * 125, first=0x89) + make(text)[:-1] for make in (frame, served)
    )
    tracemalloc.start()
    try:
        scan, scrub = FrameScan(SCANNER), FrameScrub(SCANNER.literals)
        for start in range(0, len(leaving), 1000):
            finish(scan.steps(leaving[start : start + 1000], last=False))
            finish(scrub.steps(coming[start : start + 1000]))
        assert 2 * (WINDOW - 1000) < tracemalloc.get_traced_memory()[0] <= MEMORY_OF_FRAMES
    finally:
        tracemalloc.stop()
