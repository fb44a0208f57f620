"""What is open right now, so that a revoke or a lease's end cuts exactly the traffic of that route."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

from egress.policy.decide import Request, decide_again, decide_connect
from egress.policy.routes import Auth, Dlp, Route
from egress.policy.table import Snapshot


class Flow(Protocol):
    """One request, upgraded connection or tunnel under way."""

    @property
    def tunnelled(self) -> bool: ...

    @property
    def request(self) -> Request: ...

    @property
    def route(self) -> Route | None: ...

    def cut(self) -> None:
        """End it at once."""


def is_allowed(flow: Flow, snapshot: Snapshot, now: datetime) -> bool:
    """Decide again by the table as it is now. A tunnel needs a route that is still bare.

    A flow that would now get another credential, search or address is not allowed either.
    """
    if flow.tunnelled:
        verdict = decide_connect(flow.request.host, flow.request.port, snapshot, now=now)
    else:
        verdict = decide_again(flow.request, snapshot, now=now)
    route = verdict.route
    if not verdict.allowed or route is None or (flow.tunnelled and not route.is_bare):
        return False
    return flow.route is None or _terms(route) == _terms(flow.route)


def _terms(route: Route) -> tuple[Auth | None, Dlp, tuple[str, ...]]:
    return route.auth, route.dlp, route.pinned_addresses


class Flows(set[Flow]):
    def cut_forbidden(self, snapshot: Snapshot, now: datetime, *, leased_only: bool = False) -> int:
        """Cut what the snapshot no longer allows; returns how many."""
        forbidden = [
            flow
            for flow in self
            if not (leased_only and not _is_leased(flow, snapshot)) and not is_allowed(flow, snapshot, now)
        ]
        for flow in forbidden:
            flow.cut()
        return len(forbidden)


def _is_leased(flow: Flow, snapshot: Snapshot) -> bool:
    """By the table as it is now: a lease may have been put on the route after the flow began."""
    return any(route.lease is not None for route in snapshot.table.serving(flow.request.host))
