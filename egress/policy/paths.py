"""Request paths and path prefixes that mean the same to us and to every origin, or are refused.

Trust boundary: paths come off the wire. Nothing is ever repaired: what is matched is what is forwarded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import unquote, unquote_to_bytes

from egress.policy.errors import BadPath, quoted

_CHARACTERS = r"A-Za-z0-9\-._~!$&'()*+,=:@\[\]|"
_PLAIN = re.compile(rf"/(?:(?!\.+(?:/|\Z))[{_CHARACTERS}]+(?:/|\Z))*")
_TRIPLET = re.compile(r"%[0-9A-Fa-f]{2}")
_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
# Only dots, also with the spaces around or `;parameters` that some servers remove first.
_DOT_SEGMENT = re.compile(r"(?:\A|[/\\]) *+\.[. ]*+(?:[;/\\]|\Z)")
_ALLOWED = re.compile(rf"[{_CHARACTERS}/%]*")
MAX_PREFIX = 1024
_MAX_ENCODING_LAYERS = 3
# Characters that become dots, separators or spaces on a server that folds them to their usual form (NFKC).
# Folding whole texts takes time with the square of their length; this does not.
FOLDED = str.maketrans(
    {
        **dict.fromkeys("\u2024\ufe52\uff0e", "."),
        **dict.fromkeys("\u2025\ufe30", ".."),
        **dict.fromkeys("\u2026\ufe19", "..."),
        **dict.fromkeys("\uff0f", "/"),
        **dict.fromkeys("\ufe68\uff3c", "\\"),
        **dict.fromkeys("\u037e\ufe14\ufe54\uff1b", ";"),
        **dict.fromkeys("\u00a0\u202f\u205f\u3000", " "),
        **{chr(point): " " for point in range(0x2000, 0x200B)},
    }
)


def canonical_path(raw: str, *, field: str = "the path") -> str:
    """Return exactly `raw`, or raise BadPath if two servers could read it differently. Without the query.

    An encoded slash stays allowed (package scopes and project names need it), but the text it separates is
    checked for dot segments like any other.
    """
    if _PLAIN.fullmatch(raw):
        return raw
    if not raw.startswith("/"):
        raise BadPath(f"{field} must start with '/': got {quoted(raw)}")
    _refuse_characters(raw, field)
    if "//" in raw:
        raise BadPath(f"{field} has an empty segment ('//'): write single slashes")
    _refuse_encodings(raw, field)
    _refuse_dot_segments(raw, field)
    return raw


def canonical_prefix(text: str, *, field: str = "the path prefix") -> str:
    """The one form of a prefix in a route: no trailing slash, upper-case hex, only needed percent-encoding.

    Characters beyond ASCII are percent-encoded as UTF-8. `/` alone means all paths.
    """
    if not isinstance(text, str):
        raise BadPath(f"{field} must be text that starts with '/': got {quoted(text)}")
    if not text.startswith("/"):
        raise BadPath(f"{field} must start with '/': got {quoted(text)}")
    if len(text) > MAX_PREFIX:
        raise BadPath(f"{field} is longer than {MAX_PREFIX} characters")
    try:
        encoded = "".join(c if c.isascii() else _percent_encoded(c) for c in text)
    except UnicodeEncodeError as error:
        raise BadPath(f"{field} {quoted(text)} is not valid Unicode") from error
    _refuse_characters(encoded, field)
    prefix = canonical_path(_TRIPLET.sub(_normal_triplet, encoded), field=field)
    return prefix if prefix == "/" else prefix.removesuffix("/")


def narrowest_prefix(path: str) -> str:
    """The longest prefix that a route could have to allow this path: the path itself, or a parent if it is
    too long.

    Raises BadPath if only all paths would do.
    """
    if len(path) <= MAX_PREFIX:
        return canonical_prefix(path)
    end = path.rfind("/", 0, MAX_PREFIX + 1)
    if end < 1:
        raise BadPath("the path has no parent that is short enough for a prefix")
    return canonical_prefix(path[:end])


def reduce_prefixes(prefixes: Iterable[str]) -> tuple[str, ...]:
    """Sort the prefixes and remove those that another one covers. Empty means all paths, and so does `/`."""
    reduced: list[str] = []
    for prefix in sorted(set(prefixes), key=lambda text: (len(text), text)):
        if prefix == "/":
            return ()
        if not any(prefix_allows(shorter, prefix) for shorter in reduced):
            reduced.append(prefix)
    return tuple(sorted(reduced))


def prefix_allows(prefix: str, path: str) -> bool:
    """Match at segment boundaries: `/repos` allows `/repos` and `/repos/x`, not `/reposevil`.

    `prefix` is canonical, `path` came through `canonical_path`. Hex digits have no case: `%2f` is `%2F`.
    """
    if "%" in prefix:  # only in the compared part: the rest can be long
        path = upper_hex(path[: len(prefix)]) + path[len(prefix) :]
    if not path.startswith(prefix):
        return False
    size = len(prefix)
    return len(path) == size or path[size] == "/" or prefix == "/"


def upper_hex(path: str) -> str:
    return _TRIPLET.sub(lambda triplet: triplet.group().upper(), path)


def has_dot_segment(text: str) -> bool:
    """Whether a server that takes backslashes for slashes, or folds wide characters, could find a dot
    segment.
    """
    return _DOT_SEGMENT.search(text if text.isascii() else text.translate(FOLDED)) is not None


def _percent_encoded(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode("utf-8"))


def _normal_triplet(triplet: re.Match[str]) -> str:
    character = chr(int(triplet.group()[1:], 16))
    return character if character in _UNRESERVED else triplet.group().upper()


def _refuse_characters(path: str, field: str) -> None:
    if _ALLOWED.fullmatch(path) and path.count("%") == len(_TRIPLET.findall(path)):
        return
    for character, what in (
        ("?", "a query: leave it out, prefixes are matched on the path alone"),
        ("#", "a fragment: leave it out"),
        ("\\", "a backslash"),
        (";", "a ';', which servers read in different ways"),
    ):
        if character in path:
            raise BadPath(f"{field} {quoted(path)} has {what}")
    if _ALLOWED.fullmatch(path):
        raise BadPath(f"{field} {quoted(path)} has a '%' that does not start an encoded character")
    raise BadPath(f"{field} {quoted(path)} has a character that must be percent-encoded")


def _refuse_encodings(path: str, field: str) -> None:
    for triplet in dict.fromkeys(_TRIPLET.findall(path)):
        character = chr(int(triplet[1:], 16))
        if character in _UNRESERVED:
            raise BadPath(f"{field} {quoted(path)} hides {character!r} as {triplet}: write it plainly")
        if character == "\\":
            raise BadPath(f"{field} {quoted(path)} has an encoded backslash")
    try:
        decoded = unquote_to_bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadPath(f"{field} {quoted(path)} is not valid UTF-8 when decoded") from error
    if _CONTROL.search(decoded):
        raise BadPath(f"{field} {quoted(path)} has an encoded control character")


def _refuse_dot_segments(path: str, field: str) -> None:
    """Check the path as it is, and as a server sees it that decodes it again or folds wide characters."""
    layer = path
    for _ in range(_MAX_ENCODING_LAYERS + 1):
        if has_dot_segment(layer):
            raise BadPath(f"{field} {quoted(path)} has a dot segment: write the path without '.' and '..'")
        if "\0" in layer:
            raise BadPath(f"{field} {quoted(path)} has an encoded control character")
        inner = unquote(layer, errors="replace")
        if inner == layer:
            return
        layer = inner
    raise BadPath(f"{field} {quoted(path)} is percent-encoded too many times over")
