"""Agents' text is hostile: it is stored as sent, and shown only through these functions."""

from __future__ import annotations

import re
import unicodedata
from typing import Any

# Bidi controls, zero-width and other invisible format characters are category Cf; NUL, ESC … are Cc; line and
# paragraph separators (Zl, Zp) move text; Hangul fillers and Braille blank look empty.
_INVISIBLE_CATEGORIES = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
_BLANK_LOOKALIKES = set("\u115f\u1160\u3164\uffa0\u2800\u034f\u17b4\u17b5")
_MAYBE_INVISIBLE = re.compile(r"[^\x20-\x7e\n\t]")
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_ACTIVE_IN_JSON = str.maketrans({character: f"\\u{ord(character):04x}" for character in "<>&\x7f"})


def without_nul(text: str) -> str:
    """Replace only what PostgreSQL or UTF-8 cannot hold: NUL becomes ␀, lone surrogates become �."""
    return _LONE_SURROGATE.sub("\ufffd", text.replace("\x00", "\u2400"))


def without_nul_json(value: Any) -> Any:
    """Do the same for every text inside a JSON value."""
    if isinstance(value, str):
        return without_nul(value)
    if isinstance(value, dict):
        return {without_nul(key): without_nul_json(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [without_nul_json(inner) for inner in value]
    return value


def escape_html_json(text: str) -> str:
    """Escape ASCII JSON so that neither a browser nor a terminal acts on anything in it."""
    return text.translate(_ACTIVE_IN_JSON)


def make_visible(text: str) -> str:
    """Replace every character that would hide, reorder or fake something by a token such as ⟦U+202E⟧."""
    return _MAYBE_INVISIBLE.sub(_token, text)


def one_line(text: str, limit: int) -> str:
    """The text as a short single line for tables, notifications and logs."""
    line = make_visible(" ".join(text[: limit * 4].split()))
    return line if len(line) <= limit else line[: limit - 1] + "…"


def _token(match: re.Match[str]) -> str:
    character = match[0]
    if (
        character in _BLANK_LOOKALIKES
        or unicodedata.category(character) in _INVISIBLE_CATEGORIES
        or "\ufe00" <= character <= "\ufe0f"  # variation selectors can carry hidden bytes
        or "\U000e0100" <= character <= "\U000e01ef"
    ):
        return f"⟦U+{ord(character):04X}⟧"
    return character
