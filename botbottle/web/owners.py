"""The owner of a connection or request, known before the database is asked.

A bottle is identified by the egress process, or by a token that was verified before. Everybody else counts by
address, so that made-up tokens give nobody more turns.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections import OrderedDict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from enum import Enum

from botbottle.web.planes import Plane

IDENTITY_HEADER = b"x-bottle-identity"
MOST_PROVEN = 10_000
Headers = Iterable[tuple[bytes, bytes]]


class Kind(Enum):
    """The group of an owner. Operators come first."""

    OPERATORS = "operators"
    AGENTS = "agents"


@dataclass(frozen=True, slots=True)
class Owner:
    kind: Kind
    name: Hashable

    @property
    def bottle(self) -> str | None:
        """The slug, if the owner is a bottle."""
        match self.name:
            case ("bottle", str(slug)):
                return slug
        return None


class ProvenTokens:
    """Recently verified tokens, by digest. An entry gives no access, only a separate line."""

    def __init__(self, most: int = MOST_PROVEN) -> None:
        self._most = most
        self._slugs: OrderedDict[bytes, str] = OrderedDict()

    def remember(self, authorization: str, slug: str) -> None:
        key = _digest(authorization.encode("latin-1", "replace"))
        self._slugs[key] = slug
        self._slugs.move_to_end(key)
        if len(self._slugs) > self._most:
            self._slugs.popitem(last=False)

    def forget(self, authorization: str) -> None:
        self._slugs.pop(_digest(authorization.encode("latin-1", "replace")), None)

    def slug_of(self, authorization: bytes) -> str | None:
        return self._slugs.get(_digest(authorization))


proven_tokens = ProvenTokens()


def owner_of(plane: Plane, address: str | None, headers: Headers = ()) -> Owner:
    """The owner of a request, or of a connection without one."""
    if plane is Plane.OPERATOR:
        return Owner(Kind.OPERATORS, ("address", _network(address)))
    name = IDENTITY_HEADER if plane is Plane.RELAY else b"authorization"
    given = [value for header, value in headers if header.lower() == name]
    slug = None
    if len(given) == 1:
        slug = given[0].decode("latin-1") if plane is Plane.RELAY else proven_tokens.slug_of(given[0])
    return Owner(Kind.AGENTS, ("bottle", slug) if slug else ("address", _network(address)))


def _digest(authorization: bytes) -> bytes:
    return hashlib.sha256(authorization.strip()).digest()


def _network(address: str | None) -> str:
    """The host's network: one host may have all addresses of an IPv6 /64."""
    try:
        known = ipaddress.ip_address(address or "")
    except ValueError:
        return address or ""
    if isinstance(known, ipaddress.IPv4Address):
        return str(known)
    return str(known.ipv4_mapped or ipaddress.ip_network((known, 64), strict=False))
