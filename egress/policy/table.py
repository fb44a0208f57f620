"""Route tables and snapshots. Pure and immutable. A table that exists is well-formed: one route per host."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from egress.policy.errors import BadRoute, quoted
from egress.policy.hostnames import WILDCARD, canonical_pattern
from egress.policy.routes import Route, known_keys, listed


@dataclass(frozen=True, slots=True)
class RouteTable:
    """All routes of a bottle, and the hosts that its gate allows."""

    routes: tuple[Route, ...] = ()
    gate_hosts: tuple[str, ...] = ()
    _by_host: dict[str, Route] = field(init=False, repr=False, compare=False)
    _gate: frozenset[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        index = {route.host: route for route in self.routes}
        if len(index) != len(self.routes):
            hosts = [route.host for route in self.routes]
            twice = next(host for host in hosts if hosts.count(host) > 1)
            raise BadRoute(f"routes has two entries for {quoted(twice)}: a host has one route")
        gate = frozenset(canonical_pattern(host, field="gate_hosts") for host in self.gate_hosts)
        for name, value in (
            ("routes", tuple(index[host] for host in sorted(index))),
            ("gate_hosts", tuple(sorted(gate))),
            ("_by_host", index),
            ("_gate", gate),
        ):
            object.__setattr__(self, name, value)

    def get(self, host: str) -> Route | None:
        """The route of exactly this host or pattern."""
        return self._by_host.get(host)

    def serving(self, host: str) -> Iterator[Route]:
        """Routes that apply to a host (or pattern), the deciding one first: exact, then longest wildcard."""
        for pattern in _names_from_exact_to_widest(host):
            if pattern in self._by_host:
                yield self._by_host[pattern]

    def live_route(self, host: str, now: datetime) -> Route | None:
        """The route that decides for this host; a route whose lease is over counts as absent."""
        exact = self._by_host.get(host)
        if exact is not None and not exact.is_over(now):  # the usual case, checked for every request
            return exact
        return next((route for route in self.serving(host) if not route.is_over(now)), None)

    def gate_allows(self, host: str) -> bool:
        return host in self._gate or any(name in self._gate for name in _names_from_exact_to_widest(host))

    def open_routes(self, now: datetime) -> list[Route]:
        """The routes that reach something: their lease is not over and the gate allows them."""
        return [route for route in self.routes if not route.is_over(now) and self.gate_allows(route.host)]

    def with_route(self, route: Route) -> RouteTable:
        """Add the route, or replace the host's old one; its host is mirrored to the gate."""
        others = tuple(old for old in self.routes if old.host != route.host)
        return RouteTable((*others, route), (*self.gate_hosts, route.host))

    def without_route(self, host: str) -> RouteTable:
        """Remove the route of exactly this host, and its host from the gate."""
        others = tuple(route for route in self.routes if route.host != host)
        return RouteTable(others, tuple(name for name in self.gate_hosts if name != host))

    def with_gate_host(self, host: str) -> RouteTable:
        return self if self.gate_allows(host) else RouteTable(self.routes, (*self.gate_hosts, host))

    def as_dict(self) -> dict[str, Any]:
        return {"routes": [route.as_dict() for route in self.routes], "gate_hosts": list(self.gate_hosts)}

    @classmethod
    def from_dict(cls, plain: object) -> RouteTable:
        known = known_keys(plain, "table", ("routes", "gate_hosts"))
        return cls(
            tuple(Route.from_dict(route) for route in listed(known.get("routes", ()), "routes")),
            tuple(listed(known.get("gate_hosts", ()), "gate_hosts")),
        )


def _names_from_exact_to_widest(host: str) -> Iterator[str]:
    yield host
    name = host.removeprefix(WILDCARD)
    while "." in name:
        name = name.partition(".")[2]
        yield WILDCARD + name


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One table version of one bottle, as the proxy loads it."""

    bottle: str
    version: int
    table: RouteTable
    written_at: str
