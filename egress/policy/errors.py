"""The errors of an ask, a route or a snapshot. Each message is a plain sentence fit for an agent."""

from __future__ import annotations


class PolicyError(ValueError):
    """The base of all errors here; `str(error)` says what is wrong and what to do instead."""


class BadHost(PolicyError):
    """A hostname or host pattern that cannot be used."""


class BadPath(PolicyError):
    """A path or path prefix that is malformed or can be read in two ways."""


class BadMethod(PolicyError):
    """Not an HTTP method that a route may name."""


class BadRoute(PolicyError):
    """A route, an ask for one, or a table that does not have the agreed shape."""


class BadSnapshot(PolicyError):
    """A snapshot file that is incomplete, edited, of another version or of the wrong shape."""


def quoted(value: object) -> str:
    """Agent text made safe for a message: short, and with control, bidi and look-alike characters visible."""
    text = ascii(value)
    return text if len(text) <= 100 else text[:96] + "…" + text[-1]
