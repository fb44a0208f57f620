"""The encodings in which a secret commonly travels. Pure."""

from __future__ import annotations

import base64
import json
from urllib.parse import quote, quote_plus

# Shorter values are words that occur by chance: below 8 only the plain value is searched for, below 4 none.
SHORTEST, SHORTEST_ENCODED = 4, 8
_PIECE = 256  # a long secret is known by any piece of this size
LONGEST_FORM = 2 * _PIECE - 1

# Encoders differ in the punctuation that they escape: a token without any is the same in all of them.
_LEFT_IN_URLS = ("", "/", "!'()*", "!'()*;,/?:@&=+$#")  # two of Python, encodeURIComponent, encodeURI
_LEFT_IN_FORMS = ("*", "!()*")  # Java and JavaScript, .NET; these write '~' as '%7E' too
_IN_JSON = [
    str.maketrans({'"': '\\"', **{character: f"\\u{ord(character):04x}" for character in escaped}})
    # Most of them; Go and Rails; Flask; Gson; PHP; .NET
    for escaped in ("", "<>&", "<>&'", "<>&'=", "<>&'\"", "<>&'\"+`")
]
_IN_HTML = [
    str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", **others})
    for others in (
        {},
        {'"': "&quot;"},
        {'"': "&quot;", "'": "&#x27;"},  # Python, React
        {'"': "&quot;", "'": "&#39;"},  # Ruby, JavaScript
        {'"': "&quot;", "'": "&#039;"},  # PHP
        {'"': "&quot;", "'": "&apos;"},  # XML
        {'"': "&#34;", "'": "&#39;"},  # Go, Jinja
        {'"': "&#34;", "'": "&#39;", "+": "&#43;"},  # templates of Go
        {'"': "&quot;", "'": "&#x27;", "+": "&#x2B;", "`": "&#x60;"},  # .NET
        {'"': "&quot;", "'": "&#x27;", "=": "&#x3D;", "`": "&#x60;"},  # Handlebars
    )
]


def forms_of(secret: str) -> set[bytes]:
    """The texts to search for, ignoring case. Base64 has three forms, one per position in a group."""
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
    unquoted = json.dumps(secret)[1:-1].replace('\\"', '"')
    in_json = {unquoted.translate(table) for table in _IN_JSON}
    return {
        *(quote(secret, safe=left) for left in _LEFT_IN_URLS),
        quote_plus(secret),
        *(quote_plus(secret, safe=left).replace("~", "%7E") for left in _LEFT_IN_FORMS),
        *in_json,
        *(text.replace("/", "\\/") for text in in_json),
        "".join(f"\\u{ord(character):04x}" for character in secret),
        *(secret.translate(table) for table in _IN_HTML),
    }


def _as_base64(raw: bytes) -> set[bytes]:
    """The base64 forms without the characters at either end that depend on the neighbouring bytes."""
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
