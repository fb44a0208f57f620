"""Names that could pass for one an operator knows: a letter swapped, another ending, a known name in front.

Pure. It only ever adds a warning: nothing is allowed or refused because of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from egress.policy.hostnames import WILDCARD, public_suffixes, unicode_label

# Hosts that coding agents use every day, and that are therefore imitated.
WELL_KNOWN = (
    "amazonaws.com", "anthropic.com", "bitbucket.org", "cloudflare.com", "crates.io", "debian.org",
    "discord.com", "docker.com", "docker.io", "github.com", "githubusercontent.com", "gitlab.com",
    "golang.org", "google.com", "googleapis.com", "huggingface.co", "microsoft.com", "mozilla.org",
    "nodejs.org", "npmjs.com", "npmjs.org", "openai.com", "pypi.org", "python.org", "pythonhosted.org",
    "readthedocs.io", "rust-lang.org", "slack.com", "stackoverflow.com", "ubuntu.com", "wikipedia.org",
)  # fmt: skip
_SHORTEST = 5  # letters: shorter names are too often one letter apart by chance
_CYRILLIC_AND_GREEK = str.maketrans("аеорсухіјѕԁӏһԛԝьгпкмтвнονατρικ", "aeopcyxijsdlhqwbrnkmtbhovatpik")
_ALIKE = (("rn", "m"), ("vv", "w"), ("cl", "d"), ("0", "o"), ("1", "l"), ("i", "l"), ("5", "s"), ("-", ""))


def resembles(host: str, known: Iterable[str] = ()) -> str | None:
    """The known name that this one could be mistaken for; None for known names and all names below them."""
    own, owned = _owned(host), _all_owned(frozenset(known))
    if not own or own in owned:
        return None
    return _resembled(own, host.removeprefix(WILDCARD).removesuffix(own), owned)


@lru_cache(maxsize=1024)  # pages with many names are rendered repeatedly, with the same known names
def _resembled(own: str, subdomain: str, owned: frozenset[str]) -> str | None:
    return next(
        (name for name in sorted(owned) if _passes_for(own, name) or _in_front(subdomain, name)), None
    )


@lru_cache(maxsize=16)
def _all_owned(known: frozenset[str]) -> frozenset[str]:
    return frozenset((*WELL_KNOWN, *(_owned(name) for name in known))) - {""}


@lru_cache(maxsize=4096)
def _owned(host: str) -> str:
    """The registered part of a name: example.co.uk of www.example.co.uk."""
    return public_suffixes().privatesuffix(host.removeprefix(WILDCARD)) or ""


def _passes_for(own: str, known: str) -> bool:
    if _skeleton(own) == _skeleton(known):
        return True
    (label, _, suffix), (known_label, _, known_suffix) = own.partition("."), known.partition(".")
    if len(known_label) < _SHORTEST:
        return False
    if suffix != known_suffix:
        return label == known_label
    return _one_step_apart(label, known_label)


def _in_front(subdomain: str, known: str) -> bool:
    """`github.com.evil.example` and `github-com.evil.example`."""
    labels = f".{subdomain}"
    return any(f"{mark}{form}" in labels for form in (known, known.replace(".", "-")) for mark in ".-")


@lru_cache(maxsize=4096)
def _skeleton(name: str) -> str:
    text = ".".join(unicode_label(label) for label in name.split(".")).translate(_CYRILLIC_AND_GREEK)
    for shape, plain in _ALIKE:
        text = text.replace(shape, plain)
    return text


def _one_step_apart(one: str, other: str) -> bool:
    """One letter added, dropped, replaced, or two neighbours swapped."""
    if abs(len(one) - len(other)) > 1 or one == other:
        return False
    start = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(one))
    start = min(start, len(other))
    left, right = one[start:], other[start:]
    return (
        left[1:] == right
        or left == right[1:]
        or left[1:] == right[1:]
        or (left[:2] == right[:2][::-1] and left[2:] == right[2:])
    )
