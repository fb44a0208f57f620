"""Open connections: bounded for each listener and owner, and those without a request go first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from botbottle.web.connections import (
    IDLE_SECONDS,
    MOST_BODIES,
    REQUEST_SECONDS,
    Connections,
    Place,
    for_planes,
)
from botbottle.web.owners import Kind, Owner
from botbottle.web.planes import Plane

GREEDY, MODEST, STRANGER = (Owner(Kind.AGENTS, name) for name in ("greedy", "modest", "stranger"))


class Port:
    accepts = True

    def stopReading(self) -> None:  # noqa: N802 - Twisted's name
        self.accepts = False

    def startReading(self) -> None:  # noqa: N802 - Twisted's name
        self.accepts = True


class Listener:
    """A listener, and the clients whom it had to dismiss."""

    def __init__(self, total: int, of_one: int | None = None, unknown: int | None = None) -> None:
        self.now = 0.0
        of_one = of_one or total
        self.connections = Connections(total, of_one, unknown or of_one, clock=lambda: self.now)
        self.port = Port()
        self.connections.set_acceptor(self.port)
        self.dismissed: list[Client] = []

    def connect(self, owner: Owner = STRANGER) -> Client:
        client = Client(self)
        client.place = self.connections.opened(client, owner)
        return client

    def at_work(self, owner: Owner) -> Client:
        client = self.connect()
        assert client.request(owner)
        return client


@dataclass(eq=False)
class Client:
    listener: Listener
    place: Place | None = None

    def request(self, owner: Owner, *, has_body: bool = False) -> bool:
        assert self.place is not None
        return self.listener.connections.requested(self.place, owner, has_body=has_body)

    def dismiss(self) -> None:
        self.listener.dismissed.append(self)

    def __getattr__(self, name: str) -> Any:
        """What else happens to it: `answered`, `closed` …"""
        return lambda: getattr(self.listener.connections, name)(self.place)


def test_at_its_bound_a_listener_accepts_nothing_until_a_connection_closes() -> None:
    listener = Listener(3)
    working = [listener.at_work(GREEDY) for _ in range(3)]
    assert (listener.port.accepts, listener.connections.room()) == (False, 0)
    assert listener.dismissed == []
    working[0].closed()
    assert (listener.port.accepts, listener.connections.room()) == (True, 1)


def test_at_the_bound_the_oldest_connection_without_a_request_of_the_largest_owner_goes() -> None:
    listener = Listener(5)
    kept = listener.at_work(MODEST)
    kept.answered()
    oldest, newest = listener.at_work(GREEDY), listener.at_work(GREEDY)
    oldest.answered()
    newest.answered()
    listener.now = IDLE_SECONDS
    listener.at_work(GREEDY)
    assert listener.dismissed == []
    listener.at_work(GREEDY)
    assert listener.dismissed == [oldest]
    oldest.closed()
    assert listener.port.accepts


def test_one_connection_is_dismissed_for_each_that_is_missing() -> None:
    listener = Listener(3)
    clients = [listener.connect() for _ in range(3)]
    listener.connections.close_slow()
    assert listener.dismissed == []  # what is new may have a request on its way
    listener.now = IDLE_SECONDS
    listener.connections.close_slow()
    listener.connections.close_slow()
    assert listener.dismissed == clients[:1]
    clients[0].closed()
    assert listener.port.accepts


def test_no_owner_has_more_than_its_part() -> None:
    listener = Listener(10, of_one=2)
    first, _ = listener.at_work(GREEDY), listener.at_work(GREEDY)
    third = listener.connect()
    assert not third.request(GREEDY)
    third.closed()
    assert listener.at_work(MODEST).place is not None
    first.answered()
    assert listener.connect().request(GREEDY)
    assert listener.dismissed == [first]


def test_strangers_beyond_their_part_replace_each_other() -> None:
    listener = Listener(10, of_one=2)
    first, second = listener.connect(), listener.connect()
    assert listener.connect().place is not None
    assert listener.dismissed == [first]
    assert second.request(STRANGER)
    assert listener.connect().request(STRANGER)
    assert listener.connect().place is None


def test_a_request_that_does_not_arrive_in_time_is_dismissed() -> None:
    listener = Listener(10)
    slow, idle, whole = listener.connect(), listener.connect(), listener.connect()
    slow.arriving()
    whole.arriving()
    whole.request(MODEST, has_body=True)
    whole.complete()
    listener.now = REQUEST_SECONDS / 2
    slow.arriving()
    listener.now = REQUEST_SECONDS + 1
    listener.connections.close_slow()
    assert listener.dismissed == [slow]
    listener.connections.close_slow()
    assert listener.dismissed == [slow]
    assert idle.place is not None


def test_bodies_that_arrive_at_once_are_bounded_for_each_owner() -> None:
    listener = Listener(1000)
    arriving = [listener.connect() for _ in range(MOST_BODIES + 1)]
    assert all(client.request(GREEDY, has_body=True) for client in arriving[:-1])
    assert not arriving[-1].request(GREEDY, has_body=True)
    assert listener.connect().request(MODEST, has_body=True)
    arriving[-1].closed()
    arriving[0].complete()
    assert listener.connect().request(GREEDY, has_body=True)


def test_two_listeners_share_a_total_of_which_each_keeps_a_quarter() -> None:
    relay, tcp = Listener(8), Listener(8)
    relay.connections.share_with(tcp.connections)
    many = [relay.at_work(GREEDY) for _ in range(6)]
    assert (relay.port.accepts, tcp.connections.room()) == (False, 2)
    for _ in range(2):
        tcp.at_work(MODEST)
    assert not tcp.port.accepts
    many[0].closed()
    assert relay.port.accepts
    assert (relay.connections.room(), tcp.connections.room()) == (1, 1)


@pytest.mark.parametrize("limit", [1024, 4096, 20_000, 1_048_576])
def test_all_planes_together_leave_descriptors_for_the_rest(limit: int) -> None:
    planes = for_planes(limit)
    for plane in Plane:
        planes[plane].set_acceptor(Port())
    opened = dict.fromkeys(Plane, 0)
    for plane in (Plane.AGENT, Plane.RELAY, Plane.OPERATOR):
        number = 0
        while planes[plane].room() and number < 5000:
            number += 1
            owner = Owner(Kind.AGENTS, number)
            place = planes[plane].opened(Client(Listener(1)), owner)
            assert place is not None
            planes[plane].requested(place, owner, has_body=False)
        opened[plane] = number
    assert sum(opened.values()) <= limit - 200
    assert min(opened.values()) >= 100


def test_everything_is_forgotten_with_the_last_connection() -> None:
    listener = Listener(4, of_one=2)
    for owner in (GREEDY, MODEST):
        for client in [listener.at_work(owner), listener.connect()]:
            client.closed()
            client.closed()
    assert (len(listener.connections), listener.connections._shares) == (0, {})
