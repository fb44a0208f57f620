"""Hostnames in one canonical ASCII form, which of them an agent may ask for, and which could mislead.

Trust boundary: every text that arrives here was written by an agent or read off the wire.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from egress.policy.addresses import is_forbidden_address
from egress.policy.errors import BadHost, quoted

if TYPE_CHECKING:
    from publicsuffixlist import PublicSuffixList

__all__ = [
    "canonical_host",
    "canonical_pattern",
    "check_askable",
    "check_operator_host",
    "is_forbidden_address",
    "is_punycode",
    "mixed_script",
    "pattern_matches",
]

WILDCARD = "*."
CONTROL_PLANE_NAMES = frozenset({"supervise", "_egress.local"})

_MAX_HOST = 253
_MAX_RAW = 1024  # mapping can shorten a text, but nothing this long is a hostname
_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_PLAIN = re.compile(rf"{_LABEL.pattern}(?:\.{_LABEL.pattern})*")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_ADDRESS = "is an IP address, and only names can be asked for: give"

# What each forbidden character usually means, so that the answer can say what to leave out.
_NOT_IN_A_HOST = {
    "/": "has a path or scheme: give only the hostname",
    "@": "has user information: give only the hostname",
    "?": "has a query: give only the hostname",
    "#": "has a fragment: give only the hostname",
    "%": "has a percent sign: write the hostname itself",
    "\\": "has a backslash",
    "_": "has an underscore",
    "*": "has a '*' that is not a leading '*.'",
    "[": f"{_ADDRESS} the hostname",
    "]": f"{_ADDRESS} the hostname",
}

# Names that mean "this machine" or "this network" wherever they are resolved. `.test` and `.example` are
# reserved too but left askable: public DNS never has them, so a route opens nothing, and demos use them.
_LOCAL_SUFFIXES = {
    "localhost": "means this machine",
    "localdomain": "means this machine",
    "local": "is for the local network",
    "internal": "is for private networks and cloud metadata",
    "intranet": "is for private networks",
    "private": "is for private networks",
    "corp": "is for private networks",
    "home": "is for private networks",
    "lan": "is for private networks",
    "home.arpa": "is for private networks",
    "invalid": "never resolves",
    "onion": "is not reachable through this proxy",
}
_METADATA_NAMES = frozenset(
    {"metadata.tencentyun.com", "metadata.platformequinix.com", "metadata.packet.net", "metadata.azure.com"}
)


def canonical_host(text: str, *, field: str = "host") -> str:
    """The one ASCII lower-case form of a hostname. Raises BadHost for all else, IP literals included."""
    if not isinstance(text, str) or not text:
        raise BadHost(f"{field} must be a hostname such as 'api.github.com'")
    if len(text) > _MAX_RAW:
        raise BadHost(f"{field} is longer than {_MAX_HOST} characters")
    return _canonical_host(text, field)


@lru_cache(maxsize=2048)  # a proxy is asked for the same few names repeatedly
def _canonical_host(text: str, field: str) -> str:
    host = text.lower() if text.isascii() else ""
    host = host.removesuffix(".")
    if not _PLAIN.fullmatch(host) or "xn--" in host:
        host = _mapped_host(text, field)
    if _NUMBER.fullmatch(host.rpartition(".")[2]):
        raise BadHost(f"{field} {quoted(text)} {_ADDRESS} the hostname")
    if len(host) > _MAX_HOST:
        raise BadHost(f"{field} is longer than {_MAX_HOST} characters")
    return host


def canonical_pattern(text: str, *, field: str = "host") -> str:
    """Like `canonical_host`, and `*.name` for every host below `name`."""
    if isinstance(text, str) and text.startswith(WILDCARD):
        pattern = WILDCARD + canonical_host(text[2:], field=field)
        if len(pattern) > _MAX_HOST:
            raise BadHost(f"{field} is longer than {_MAX_HOST} characters")
        return pattern
    return canonical_host(text, field=field)


def _mapped_host(text: str, field: str) -> str:
    """The slow path: UTS 46 mapping, then every check again on its result."""
    import idna  # noqa: PLC0415  (its tables cost 20 ms, and plain names never need them)

    _refuse_characters(text, text, field)
    try:
        mapped = idna.uts46_remap(text, std3_rules=True, transitional=False)
        _refuse_characters(mapped, text, field)
        return ".".join(_canonical_label(label, text, field) for label in mapped.removesuffix(".").split("."))
    except (idna.IDNAError, UnicodeError) as error:
        raise BadHost(f"{field} {quoted(text)} is not a valid hostname") from error


def _canonical_label(label: str, text: str, field: str) -> str:
    import idna  # noqa: PLC0415

    if not label:
        raise BadHost(f"{field} {quoted(text)} has an empty part between dots")
    if label.isascii() and not label.startswith("xn--"):
        # idna would refuse '--' in third place here, but such names are in daily use (video and CDN hosts).
        if not _LABEL.fullmatch(label):
            raise BadHost(
                f"{field} {quoted(text)} has a part that is not 1 to 63 letters, digits and inner hyphens"
            )
        return label
    encoded = idna.alabel(idna.ulabel(label)).decode("ascii")
    if label.isascii() and encoded != label:
        raise BadHost(f"{field} {quoted(text)} has a part that is not valid punycode")
    return encoded


def _refuse_characters(candidate: str, text: str, field: str) -> None:
    if ":" in candidate:
        many = candidate.count(":") > 1
        what = _ADDRESS if many else "has a port or scheme: give only"
        raise BadHost(f"{field} {quoted(text)} {what} the hostname")
    for character in candidate:
        if character in _NOT_IN_A_HOST:
            raise BadHost(f"{field} {quoted(text)} {_NOT_IN_A_HOST[character]}")
        if character.isspace() or unicodedata.category(character).startswith("C"):
            raise BadHost(f"{field} {quoted(text)} has a space, a control or an invisible character")


def check_askable(host_or_pattern: str, *, field: str = "host") -> str:
    """The canonical form of a host that an agent may ask for. Raises BadHost with the reason otherwise."""
    name = check_operator_host(host_or_pattern, field=field)
    refuse_local_name(name, field=field)
    if not name.startswith(WILDCARD) and public_suffixes().is_public(name):
        raise BadHost(
            f"{field} {quoted(name)} is a public suffix shared by many owners: ask for the full name below it"
        )
    return name


def check_operator_host(host_or_pattern: str, *, field: str = "host") -> str:
    """The canonical form of a host that an operator may open: no reserved name and no whole registry."""
    if isinstance(host_or_pattern, str) and host_or_pattern.lower().rstrip(".") in CONTROL_PLANE_NAMES:
        raise BadHost(f"{field} {quoted(host_or_pattern)} belongs to bot-bottle: it is always reachable")
    pattern = canonical_pattern(host_or_pattern, field=field)
    base = pattern.removeprefix(WILDCARD)
    if base in CONTROL_PLANE_NAMES:
        raise BadHost(f"{field} {quoted(pattern)} belongs to bot-bottle itself")
    if base != pattern and public_suffixes().is_public(base):
        raise BadHost(
            f"{field} {quoted(pattern)} opens a public suffix shared by many owners: name hosts below it"
        )
    return pattern


def refuse_local_name(pattern: str, *, field: str = "host") -> None:
    """Raise BadHost for names that only have a meaning on the host's own network."""
    base = pattern.removeprefix(WILDCARD)
    labels = base.split(".")
    if len(labels) == 1:
        raise BadHost(f"{field} {quoted(base)} has no domain: give the full public hostname")
    for suffix in (labels[-1], ".".join(labels[-2:])):
        if suffix in _LOCAL_SUFFIXES:
            why = f"'.{suffix}' {_LOCAL_SUFFIXES[suffix]}"
            raise BadHost(f"{field} {quoted(base)} is not a public name: {why}")
    if base in _METADATA_NAMES or any(pattern_matches(pattern, name) for name in _METADATA_NAMES):
        raise BadHost(f"{field} {quoted(pattern)} covers a cloud metadata service")


@cache
def public_suffixes() -> PublicSuffixList:
    from publicsuffixlist import PublicSuffixList  # noqa: PLC0415  (70 ms, and only asks need it)

    return PublicSuffixList()


def pattern_matches(pattern: str, host: str) -> bool:
    """Match two canonical names: `*.a.b` matches one or more labels below `a.b`, never `a.b` itself."""
    if pattern.startswith(WILDCARD):
        return host.endswith(pattern[1:]) and len(host) >= len(pattern)
    return pattern == host


def is_punycode(host: str) -> bool:
    return any(label.startswith("xn--") for label in host.split("."))


# Highly restrictive profile of UTS 39: scripts that may share a label.
_SCRIPT_MIXES = tuple(
    frozenset(mix)
    for mix in (
        {"LATIN", "CJK", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA"},
        {"LATIN", "CJK", "BOPOMOFO"},
        {"LATIN", "CJK", "HANGUL"},
    )
)
# Cyrillic and Greek letters that pass for Latin ones in common fonts: a label of these alone is a disguise.
_LATIN_LOOKALIKES = frozenset("аеорсухіјѕԁӏһԛԝѵѡьгпкмтвнαικνορτυωηγ")


def mixed_script(host: str) -> bool:
    """Whether a label mixes scripts that no language mixes, or is made of Latin look-alikes alone."""
    return any(_suspicious(unicode_label(label)) for label in host.split("."))


def unicode_label(label: str) -> str:
    if not label.startswith("xn--"):
        return label
    import idna  # noqa: PLC0415

    try:
        return idna.ulabel(label)
    except (idna.IDNAError, UnicodeError):
        return label


def _suspicious(label: str) -> bool:
    letters = [character for character in label if character.isalpha()]
    if label.isascii() or not letters:
        return False
    if any(unicodedata.category(character).startswith("C") for character in label):
        return True
    scripts = {unicodedata.name(letter, "UNKNOWN").split()[0] for letter in letters}
    if len(scripts) > 1 and not any(scripts <= mix for mix in _SCRIPT_MIXES):
        return True
    return all(letter in _LATIN_LOOKALIKES for letter in letters)
