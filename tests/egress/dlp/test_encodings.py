"""Encodings undone wherever they stand in a text, within bounds."""

from __future__ import annotations

import base64
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egress.dlp.encodings import APART, GROWTH, OVERLAP, PART, _hints, is_plain, layers, run_before, undone
from egress.dlp.scanner import WINDOW, BodyScan, Found, Scanner
from tests.support.steps import finish
from tests.support.strategies import examples
from tests.support.token_examples import EXAMPLES

TOKEN = b" " + EXAMPLES["github-token"].encode() + b" "
NOISE = random.Random(3).randbytes(200_000)
ENCODERS: dict[str, Callable[[bytes], bytes]] = {
    "base64": base64.b64encode,
    "base64 in lines": base64.encodebytes,
    "base64url": base64.urlsafe_b64encode,
    "base32": base64.b32encode,
    "hex": lambda data: data.hex().encode(),
    "hex with spaces": lambda data: data.hex(" ").encode(),
    "escapes": lambda data: b"".join(b"\\x%02x" % byte for byte in data),
}

RUNS = ENCODERS.keys() - {"hex with spaces"}  # of one alphabet


def kind_in(body: bytes, size: int) -> str | None:
    search = BodyScan(Scanner())
    try:
        for start in range(0, len(body), size):
            finish(search.steps(body[start : start + size], last=False))
        finish(search.steps(b"", last=True))
    except Found as found:
        return found.finding.kind
    return None


@pytest.mark.parametrize("name", ENCODERS)
@settings(max_examples=examples(15))
@given(
    clear=st.integers(0, 70_000), before=st.integers(0, 120_000), size=st.integers(300, 200_000),
    letters=st.integers(0, 9),
)  # fmt: skip
def test_a_token_is_found_wherever_it_is_in_whatever_pieces(
    name: str, clear: int, before: int, size: int, letters: int
) -> None:
    inside = ENCODERS[name](NOISE[:before] + TOKEN + NOISE[: before // 2])
    short = len(inside) <= OVERLAP
    body = b". " * (clear // 2) + b"x" * letters * short + inside + b" the end"
    assert kind_in(body, size) == "github-token"


@given(st.integers(0, 12), st.binary(max_size=100), st.sampled_from(sorted(RUNS)))
def test_what_stands_before_and_behind_does_not_matter(letters: int, around: bytes, name: str) -> None:
    text = b"A" * letters + ENCODERS[name](around + TOKEN + around) + b"A" * letters
    assert any(TOKEN in layer for layer in layers(text)), name


@given(st.lists(st.sampled_from(sorted(ENCODERS)), min_size=2, max_size=2))
def test_two_are_undone_one_in_the_other(names: list[str]) -> None:
    inner, outer = (ENCODERS[name] for name in names)
    assert any(TOKEN in layer for layer in layers(outer(b"{" + inner(TOKEN) + b"}")))


ALPHABETS = [
    *(b"A", b"AB", b"a2", b"F", b"0", b"f ", b"0x41, ", b"%41"),
    *(b"\\u0041", b"&#65;", b"a\0", b"a/\n", NOISE),
]


@pytest.mark.parametrize("alphabet", ALPHABETS)
def test_what_comes_of_a_text_is_bounded(alphabet: bytes) -> None:
    text = (alphabet * (PART // len(alphabet) + 1))[:PART]
    assert len(undone(text, None)) <= GROWTH * len(text) + 20 * len(APART) + 100


PIECES = st.lists(
    st.sampled_from(
        [
            *(b"A" * 20, b"a2" * 10, b"MFRGG" * 4, b"a\0" * 8, b"41424344 ", b"41:", b"=", b"===", b"0x"),
            *(b"\\u00", b"\\u{4", b"}", b"&#x", b"65;", b"%", b"4", b"\n", b" ", b"\\n", b"\xff"),
        ]
    ),
    max_size=40,
).map(b"".join)


@settings(max_examples=examples(300))
@given(PIECES | st.binary(max_size=300), st.none() | st.integers(0, 3))
def test_anything_can_be_undone(text: bytes, before: int | None) -> None:
    for layer in layers(text, before):
        assert isinstance(layer, bytes)
    assert not (is_plain(text) and _hints().ends(text))


@pytest.mark.parametrize(
    ("text", "before", "expected"),
    [
        (b"", 3, 3),
        (b"abc", 0, 3),
        (b"abc", 3, 2),
        (b"abc", None, None),
        (b"abc.", None, 0),
        (b". abcde", None, 1),
        (b"x" * 5000, 1, 1),
        (b"x" * 5000, None, None),
        (b"." + b"x" * 5002, None, 2),
        (b"x" * 77 + b"\n" + b"x" * 30, None, 2),
    ],
)
def test_how_far_a_run_has_come_is_known(text: bytes, before: int | None, expected: int | None) -> None:
    assert run_before(text, len(text), before) == expected


def test_ordinary_text_is_not_taken_for_encoded() -> None:
    for text in (
        b"def test_ordinary_text_is_not_taken_for_encoded(self): ...",
        b"MAXIMUM_NUMBER_OF_CONNECTIONS = 12",
        b'{"id": "0d9f6a2e-7f5d-4a1e-9c3b-7e1f2a3b4c5d", "at": 1731960000}',
        b"GET /v1/things?page=2&size=100 HTTP/1.1\r\nUser-Agent: curl/8.5.0\r\nAccept: */*",
        b"===================================",
        b"[1, 2, 3, 40, 500, 6000, 70000]",
    ):
        assert undone(text, 0).strip(APART) == b"", text


def test_a_secret_in_base64_of_more_than_a_window_is_found_at_its_end() -> None:
    body = b'{"data": "' + base64.b64encode(NOISE[: 2 * WINDOW] + TOKEN) + b'"}'
    assert kind_in(body, 5000) == "github-token"
