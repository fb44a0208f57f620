"""What was found out about the last usual request to a host and its answer, for the next that is the same.

A tool sends the same fields again and again, on one connection or on a new one each time, and an origin the
same head. Nothing here is believed by itself: whoever uses it asks first whether it is still true.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from egress.policy.routes import Route
from egress.policy.table import Snapshot
from egress.proxy.net.pool import Key
from egress.proxy.state.active_scan import ActiveScan

_HOSTS = 64
_BYTES = 2048  # of a head that is remembered beyond its connection


@dataclass(frozen=True, slots=True)
class CachedRequest:
    """What is true of requests with these fields, under one table and with one set of secrets."""

    fields: bytes  # everything that follows the first line
    search: ActiveScan
    route: Route
    searched: bool  # so is the line, then
    key: Key
    sent: bytes  # to the origin, in place of `fields`


@dataclass(frozen=True, slots=True)
class Answer:
    """A head that came, how it was read, and what is sent on in its place."""

    raw: bytes
    to_head: bool
    size: int  # with its body
    status: int
    length: int
    keeps_alive: bool
    sent: bytes


class HostEntry:
    """Of one host. A connection begins with this request and answer, and goes on with its own."""

    __slots__ = ("answer", "request", "route", "snapshot")

    def __init__(self) -> None:
        self.request: CachedRequest | None = None
        self.answer: Answer | None = None
        self.snapshot: Snapshot | None = None  # which the route was found by
        self.route: Route | None = None

    def keep_request(self, habit: CachedRequest | None) -> None:
        if habit is not None and len(habit.fields) <= _BYTES:
            self.request = habit

    def keep_answer(self, answer: Answer | None) -> None:
        if answer is not None and len(answer.raw) <= _BYTES:
            self.answer = answer


class HeadCache:
    """Of the hosts that a bottle has spoken to last."""

    def __init__(self) -> None:
        self._hosts: OrderedDict[str, HostEntry] = OrderedDict()

    def of(self, host: str) -> HostEntry:
        habits = self._hosts.pop(host, None) or HostEntry()
        self._hosts[host] = habits
        if len(self._hosts) > _HOSTS:
            self._hosts.popitem(last=False)
        return habits

    def clear(self) -> None:
        """What is remembered holds on to the table and the secrets that it was true of."""
        self._hosts.clear()
