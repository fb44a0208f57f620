"""What is open right now, so that a revoke or a lease's end cuts exactly the traffic of that route."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from egress.policy import Request, Snapshot, decide, decide_connect
from egress.routes import Route


@dataclass(eq=False, slots=True)
class Flow:
    """One request, upgraded connection or tunnel under way. `cut` ends it at once."""

    request: Request
    route: Route
    tunnelled: bool
    cut: Callable[[], None]

    def is_allowed_by(self, snapshot: Snapshot, now: datetime) -> bool:
        """The same question again, of the table as it is now. A tunnel needs a route that is still bare."""
        if self.tunnelled:
            verdict = decide_connect(self.request.host, self.request.port, snapshot, now=now)
            return verdict.allowed and verdict.route is not None and verdict.route.is_bare
        return decide(self.request, snapshot, now=now).allowed


class Flows:
    def __init__(self) -> None:
        self._open: set[Flow] = set()

    def __len__(self) -> int:
        return len(self._open)

    def add(self, flow: Flow) -> None:
        self._open.add(flow)

    def remove(self, flow: Flow) -> None:
        self._open.discard(flow)

    def cut_forbidden(self, snapshot: Snapshot, now: datetime, *, leased_only: bool = False) -> int:
        """Cut what the snapshot no longer allows; returns how many."""
        forbidden = [
            flow
            for flow in self._open
            if not (leased_only and flow.route.lease is None) and not flow.is_allowed_by(snapshot, now)
        ]
        for flow in forbidden:
            flow.cut()
        return len(forbidden)

    def cut_all(self) -> None:
        for flow in list(self._open):
            flow.cut()
