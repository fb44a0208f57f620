"""Hostile text: stored as sent, shown so that nothing in it hides, moves or acts."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from botbottle.core.sanitize import escape_html_json, make_visible, one_line, without_nul, without_nul_json

ANY_TEXT = st.text(st.characters(codec=None), max_size=60)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain é 日本 😀", "plain é 日本 😀"),
        ("tab\tand\nline", "tab\tand\nline"),
        ("a\u202eb", "a⟦U+202E⟧b"),
        ("\x1b[31m", "⟦U+001B⟧[31m"),
        ("\x00\r\x7f\x9b", "⟦U+0000⟧⟦U+000D⟧⟦U+007F⟧⟦U+009B⟧"),
        ("\u200b\ufeff\u00ad\u2066", "⟦U+200B⟧⟦U+FEFF⟧⟦U+00AD⟧⟦U+2066⟧"),
        ("\u2028\u2029", "⟦U+2028⟧⟦U+2029⟧"),
        ("\u3164\u2800\ufe0f", "⟦U+3164⟧⟦U+2800⟧⟦U+FE0F⟧"),
        ("\U000e0041\U000e0101", "⟦U+E0041⟧⟦U+E0101⟧"),
        ("\ud800", "⟦U+D800⟧"),
    ],
)
def test_what_hides_is_shown(text: str, shown: str) -> None:
    assert make_visible(text) == shown


@given(ANY_TEXT)
def test_what_is_shown_can_be_printed_and_shown_again(text: str) -> None:
    shown = make_visible(text)
    assert shown.encode().decode() == shown
    assert make_visible(shown) == shown


@given(ANY_TEXT)
def test_what_is_stored_fits_every_database_and_is_otherwise_as_sent(text: str) -> None:
    stored = without_nul(text)
    assert "\x00" not in stored
    assert stored.encode().decode() == stored
    assert len(stored) == len(text)
    if "\x00" not in text and not any("\ud800" <= character <= "\udfff" for character in text):
        assert stored == text


def test_every_text_inside_a_json_value_is_made_storable() -> None:
    value = {"a\x00": ["\ud800", {"b": "\x00", "n": 1, "x": None, "t": True}]}
    assert without_nul_json(value) == {"a␀": ["\ufffd", {"b": "␀", "n": 1, "x": None, "t": True}]}


@given(st.recursive(ANY_TEXT, lambda inner: st.lists(inner) | st.dictionaries(ANY_TEXT, inner), max_leaves=8))
def test_inert_json_is_printable_ascii_and_means_the_same(value: object) -> None:
    text = escape_html_json(json.dumps(value))
    assert text.isascii()
    assert text.isprintable()
    assert not set("<>&") & set(text)
    assert json.loads(text) == value


@pytest.mark.parametrize(
    ("text", "line"),
    [("one\ntwo\t three", "one two three"), ("x" * 30, "x" * 19 + "…"), ("a\u202eb", "a⟦U+202E⟧b"), ("", "")],
)
def test_one_line_is_short_and_one_line(text: str, line: str) -> None:
    assert one_line(text, 20) == line
