"""A secret that comes back is covered, whatever its encoding and its pieces, and all else passes at once."""

from __future__ import annotations

import base64
import json
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egress.dlp.redaction import Scrubber
from egress.dlp.scanner import PART, Matcher, Scanner
from tests.support.steps import finish

SECRET = "aaab/aaac+secret-1"
SCANNER = Scanner([SECRET, "another-secret"])
ECHOES = [
    SECRET.encode(),
    quote(SECRET, safe="").encode(),
    SECRET.encode().hex().encode(),
    base64.b64encode(b"Bearer " + SECRET.encode()),
    base64.b64encode(b"me:" + SECRET.encode()),
    base64.urlsafe_b64encode(SECRET.encode()),
    json.dumps(SECRET).replace("/", "\\/").encode(),
]


def scrubbed(pieces: list[bytes]) -> bytes:
    scrubber = Scrubber(SCANNER.literals)
    return b"".join(scrubber.feed(piece, last=False) for piece in pieces) + scrubber.feed(b"", last=True)


def cut(text: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({place % (len(text) + 1) for place in cuts})
    return [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]


@pytest.mark.parametrize("echo", ECHOES)
def test_an_echo_is_covered_in_its_length(echo: bytes) -> None:
    text = b'{"seen": "' + echo + b'", "again": "' + echo + b'"}'
    cleaned = scrubbed([text])
    assert len(cleaned) == len(text)
    assert Scanner([SECRET]).kind_in(cleaned) is None
    assert cleaned.startswith(b'{"seen": "')
    assert cleaned.endswith(b'"}')
    assert b"*****" in cleaned


@given(st.sampled_from(ECHOES), st.lists(st.integers(0, 200), max_size=40), st.binary(max_size=40))
def test_pieces_make_no_difference(echo: bytes, cuts: list[int], around: bytes) -> None:
    text = around + echo + around + echo[:7] + around
    cleaned = scrubbed(cut(text, cuts))
    assert cleaned == scrubbed([text])
    assert len(cleaned) == len(text)
    assert SCANNER.literals.first(cleaned) is None


@given(st.lists(st.binary(max_size=60)))
def test_what_holds_no_secret_is_unchanged(pieces: list[bytes]) -> None:
    assert scrubbed(pieces) == b"".join(pieces)


@given(st.lists(st.sampled_from([b"aaab/", b"aaac+secret-", b"aaab/aaac", b"1", b"a", b"aa"]), max_size=20))
def test_beginnings_that_lead_nowhere_are_given_back(pieces: list[bytes]) -> None:
    text = b"".join(pieces)
    cleaned = scrubbed(pieces)
    assert cleaned == text.replace(SECRET.encode(), b"*" * len(SECRET))


def test_events_pass_at_once() -> None:
    scrubber = Scrubber(SCANNER.literals)
    for number in range(20):
        event = b"data: %d\n\n" % number
        assert scrubber.feed(event, last=False) == event


def test_only_a_beginning_is_held_back() -> None:
    scrubber = Scrubber(SCANNER.literals)
    assert scrubber.feed(b"x AAAB/aa", last=False) == b"x "
    assert scrubber.feed(b"nothing", last=False) == b"AAAB/aanothing"
    assert scrubber.feed(b"anot", last=False) == b""
    assert scrubber.feed(b"her-secret!", last=False) == b"*" * 14 + b"!"
    assert scrubber.count == 1


class CountingForms(Matcher):
    """Counts what it searches."""

    searched = 0

    def ends(self, text: bytes) -> list[tuple[int, int]]:
        self.searched += len(text)
        return super().ends(text)


def test_no_step_cleans_much() -> None:
    forms, most, text = CountingForms([b"abcdefgh"], literal=True, caseless=True), 0, b"abcdefgh" * 30_000
    steps = Scrubber(forms).steps(text, last=True)
    try:
        while True:
            next(steps)
            most, forms.searched = max(most, forms.searched), 0
    except StopIteration as done:
        assert done.value == b"*" * len(text)
    assert 0 < most < 2 * PART


@pytest.mark.parametrize("echo", ECHOES)
@pytest.mark.parametrize("before", [-700, -5, 0])
def test_an_echo_across_two_steps_is_covered(echo: bytes, before: int) -> None:
    text = b"." * (2 * PART + before) + echo + b"!" * PART
    cleaned = finish(Scrubber(SCANNER.literals).steps(text, last=True))
    assert cleaned == scrubbed([text])
    assert len(cleaned) == len(text)
    assert SCANNER.literals.first(cleaned) is None


def test_a_long_secret_is_covered_whole() -> None:
    secret = "".join(f"{number:05}" for number in range(2000))
    scrubber = Scrubber(Scanner([secret]).literals)
    pieces = [
        scrubber.feed(secret[start : start + 700].encode(), last=False) for start in range(0, 10_000, 700)
    ]
    assert b"".join(pieces) + scrubber.feed(b"", last=True) == b"*" * 10_000
