"""The open connections of a listener: how many each owner may have, and which are closed first.

At the limit a listener stops accepting until connections close: new ones wait in the kernel's queue.
Connections without a request are closed first, of the owner with most of them. Everything here runs on the
event loop.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from botbottle.web.owners import Owner
from botbottle.web.planes import Plane

RESERVE = 256  # descriptors for the database, files, listeners and our own connections
IDLE_SECONDS = 1.0  # a connection that is idle for less may have a request on its way
MOST_OPERATORS = 1024
MOST_BODIES = 64  # arriving at once for one owner: each takes up to a mebibyte of memory
REQUEST_SECONDS = 60.0  # from a request's first byte to its last


class Client(Protocol):
    def dismiss(self) -> None:
        """Close the connection, which has no pending request."""


class Acceptor(Protocol):
    """The accepting side: Twisted's port."""

    def stopReading(self) -> None: ...  # noqa: N802

    def startReading(self) -> None: ...  # noqa: N802


@dataclass(eq=False, slots=True)
class Place:
    """A connection. `since`: idle from this time on, `began`: when an incomplete request began to arrive."""

    client: Client
    owner: Owner
    since: float
    began: float | None = None
    has_request: bool = False
    has_body: bool = False  # an incomplete one
    is_leaving: bool = False


@dataclass(slots=True)
class _Share:
    """The connections of one owner; the idle ones in the order of their last request."""

    idle: OrderedDict[Place, None] = field(default_factory=OrderedDict)
    count: int = 0
    bodies: int = 0


class Connections:
    """The connections of a listener. An owner may have `of_one`, or `unknown` before it is identified."""

    def __init__(
        self, total: int, of_one: int, unknown: int, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._total = total
        self._of_one = of_one
        self._unknown = unknown
        self._beside: Connections | None = None
        self._clock = clock
        self._acceptor: Acceptor | None = None
        self._is_closed = False
        self._shares: dict[Owner, _Share] = {}
        self._places: set[Place] = set()
        self._leaving = 0

    def __len__(self) -> int:
        return len(self._places)

    def set_acceptor(self, acceptor: Acceptor) -> None:
        self._acceptor = acceptor

    def share_with(self, other: Connections) -> None:
        """Share one total with another listener. A quarter of it is reserved for each."""
        self._beside, other._beside = other, self

    def room(self) -> int:
        """How many connections may be accepted now. Stops accepting at 0, and resumes."""
        used = max(len(self._beside), self._total // 4) if self._beside is not None else 0
        room = max(0, self._total - used - len(self._places))
        if self._acceptor is not None and self._is_closed is not (room == 0):
            self._is_closed = room == 0
            (self._acceptor.stopReading if self._is_closed else self._acceptor.startReading)()
        return room

    # --- What happens to a connection

    def opened(self, client: Client, owner: Owner) -> Place | None:
        """Count a new connection. Returns None when its owner has too many."""
        share = self._shares.get(owner, _Share())
        if share.count >= self._unknown and not self._dismiss_oldest(share):
            return None
        place = Place(client, owner, since=self._clock())
        self._places.add(place)
        self._enter(place)
        self._make_room()
        return place

    def closed(self, place: Place) -> None:
        if place in self._places:
            self._leave(place)
            self._leaving -= place.is_leaving
            self._places.discard(place)
            self.room()
            if self._beside is not None:
                self._beside.room()

    def arriving(self, place: Place) -> None:
        """Bytes of a request have arrived."""
        if place.began is None and not place.has_request:
            place.began = self._clock()

    def requested(self, place: Place, owner: Owner, *, has_body: bool) -> bool:
        """The head of a request has arrived and identifies the owner. Returns False for one with too many."""
        if place.is_leaving:
            return False
        self._leave(place)
        place.owner, place.has_request, place.has_body = owner, True, has_body
        self._enter(place)
        share = self._shares[owner]
        if share.bodies > MOST_BODIES:
            return False
        return share.count <= self._of_one or self._dismiss_oldest(share)

    def complete(self, place: Place) -> None:
        """The whole request has arrived."""
        place.began = None
        if place.has_body and not place.is_leaving:
            self._shares[place.owner].bodies -= 1
        place.has_body = False

    def answered(self, place: Place) -> None:
        """The request is answered; the connection is idle."""
        if place in self._places and not place.is_leaving:
            self._leave(place)
            place.has_request = place.has_body = False
            place.began, place.since = None, self._clock()
            self._enter(place)
            self._make_room()

    def close_slow(self) -> None:
        """Close connections that take too long to send a request. Called every second."""
        self._make_room()
        overdue = self._clock() - REQUEST_SECONDS
        for place in [place for place in self._places if place.began is not None and place.began < overdue]:
            self._dismiss(place)

    # ---

    def _enter(self, place: Place) -> None:
        share = self._shares.setdefault(place.owner, _Share())
        share.count += 1
        share.bodies += place.has_body
        if not place.has_request:
            share.idle[place] = None

    def _leave(self, place: Place) -> None:
        """Stop counting a connection for its owner. It has a place until it is closed."""
        if place.is_leaving:
            return
        share = self._shares[place.owner]
        share.count -= 1
        share.bodies -= place.has_body
        share.idle.pop(place, None)
        if not share.count:
            del self._shares[place.owner]

    def _make_room(self) -> None:
        """At the limit, close a connection that has been idle for a while, unless one is closing."""
        if self.room() or self._leaving:
            return
        longest = self._clock() - IDLE_SECONDS
        shares = (share for share in self._shares.values() if share.idle)
        idle = [share for share in shares if next(iter(share.idle)).since <= longest]
        if idle:
            self._dismiss_oldest(max(idle, key=lambda share: share.count))

    def _dismiss_oldest(self, share: _Share) -> bool:
        if not share.idle:
            return False
        self._dismiss(next(iter(share.idle)))
        return True

    def _dismiss(self, place: Place) -> None:
        self._leave(place)
        self._leaving += not place.is_leaving
        place.began, place.is_leaving = None, True
        place.client.dismiss()


def for_planes(descriptors: int) -> dict[Plane, Connections]:
    """The connections of each plane, for this many descriptors. Agents never use the operators' share."""
    operators = min(MOST_OPERATORS, descriptors // 8)
    agents = max(4, descriptors - RESERVE - operators)
    found = {
        Plane.OPERATOR: Connections(operators, operators, operators),
        Plane.RELAY: Connections(agents, agents // 2, agents),  # the relay identifies its owner at once
        Plane.AGENT: Connections(agents, agents // 2, agents // 2),
    }
    found[Plane.RELAY].share_with(found[Plane.AGENT])
    return found
