"""One secret in the encodings in which it commonly travels. Pure."""

from __future__ import annotations

import base64
import html
import json
from urllib.parse import quote, quote_plus

# Shorter values are words that turn up by chance: below 8 only as they are, below 4 not at all.
SHORTEST, SHORTEST_ENCODED = 4, 8
_PIECE = 256  # a long secret is known by any piece of this size
LONGEST_FORM = 2 * _PIECE - 1


def forms_of(secret: str) -> set[bytes]:
    """What to search for, without regard to case. Base64 has three forms, one per position in a group."""
    raw = secret.encode("utf-8")
    if len(raw) < SHORTEST:
        return set()
    forms = {raw}
    if len(raw) >= SHORTEST_ENCODED:
        forms |= {form.encode("utf-8") for form in _as_text(secret)}
        forms |= {raw.hex().encode("ascii"), "".join(f"%{byte:02x}" for byte in raw).encode("ascii")}
        forms |= _as_base64(raw)
    return {piece for form in forms for piece in _pieces(form.lower())}


def _as_text(secret: str) -> set[str]:
    in_json = json.dumps(secret)[1:-1]
    return {
        quote(secret, safe=""),
        quote(secret),
        quote_plus(secret),
        in_json,
        in_json.replace("/", "\\/"),
        "".join(f"\\u{ord(character):04x}" for character in secret),
        html.escape(secret),
    }


def _as_base64(raw: bytes) -> set[bytes]:
    """Without the characters at either end that depend on what stands next to the secret."""
    forms = set()
    for before, skipped in enumerate((0, 2, 3)):
        encoded = base64.b64encode(bytes(before) + raw)
        certain = encoded[skipped : 8 * (before + len(raw)) // 6]
        forms |= {certain, certain.replace(b"+", b"-").replace(b"/", b"_")}
    return forms


def _pieces(form: bytes) -> list[bytes]:
    if len(form) <= LONGEST_FORM:
        return [form]
    starts = range(0, len(form) - _PIECE + 1, _PIECE)
    pieces = [form[start : start + _PIECE] for start in starts]
    pieces[-1] = form[starts[-1] :]
    return pieces
