"""Route tables, snapshots and the one matcher, shared by the proxy and by the console's preview.

Pure and immutable. A table that exists is well-formed: one route per host, sorted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from egress.policy.errors import BadHost, BadPath, BadRoute, PolicyError, quoted
from egress.policy.hostnames import WILDCARD, canonical_host, canonical_pattern, check_askable
from egress.policy.paths import canonical_path, narrowest_prefix
from egress.policy.routes import Auth, Dlp, Lease, Route, canonical_methods, known_keys, listed

__all__ = [
    "Auth",
    "Dlp",
    "Lease",
    "Request",
    "Route",
    "RouteTable",
    "Snapshot",
    "Verdict",
    "decide",
    "decide_again",
    "decide_connect",
    "used_up",
]

PORTS = {"https": 443, "http": 80}


@dataclass(frozen=True, slots=True)
class RouteTable:
    """Every route of a bottle, and the hosts its gate lets through."""

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
        """The route written for exactly this host or pattern."""
        return self._by_host.get(host)

    def serving(self, host: str) -> Iterator[Route]:
        """Routes that apply to a host (or pattern), the deciding one first: exact, then longest wildcard."""
        for pattern in _names_from_exact_to_widest(host):
            if pattern in self._by_host:
                yield self._by_host[pattern]

    def live_route(self, host: str, now: datetime) -> Route | None:
        """The route that decides for this host; one whose lease is over counts as absent."""
        exact = self._by_host.get(host)
        if exact is not None and not exact.is_over(now):  # nearly always, and on the way of every request
            return exact
        return next((route for route in self.serving(host) if not route.is_over(now)), None)

    def gate_allows(self, host: str) -> bool:
        return host in self._gate or any(name in self._gate for name in _names_from_exact_to_widest(host))

    def open_routes(self, now: datetime) -> list[Route]:
        """Those by which something is reached: neither over nor kept back by the gate."""
        return [route for route in self.routes if not route.is_over(now) and self.gate_allows(route.host)]

    def with_route(self, route: Route) -> RouteTable:
        """The route added, or put in place of the host's old one; its host mirrored onto the gate."""
        others = tuple(old for old in self.routes if old.host != route.host)
        return RouteTable((*others, route), (*self.gate_hosts, route.host))

    def without_route(self, host: str) -> RouteTable:
        """The inverse: the route written for exactly this host is gone, and so is its host at the gate."""
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


class Request(NamedTuple):  # made for every request: much cheaper than a frozen dataclass
    """What a bottle wants to send. `path` is without the query; `host` is in canonical form."""

    scheme: str
    host: str
    port: int
    method: str
    path: str


class Verdict(NamedTuple):
    """`reason` is a stable code: ok, bad-host, bad-path, port, no-route, expired, used-up, gate, plain-http,
    path, method. `ask` holds the egress-block arguments that would ask for what was refused, or None when
    asking cannot help.
    """

    allowed: bool
    reason: str
    sentence: str
    route: Route | None = None
    ask: dict[str, Any] | None = None


def decide(request: Request, snapshot: Snapshot, *, now: datetime) -> Verdict:
    """Whether this request may go out, by this snapshot. Never raises for anything a bottle can send."""
    try:
        canonical_path(request.path)
    except BadPath as error:
        return Verdict(False, "bad-path", f"The request was refused: {error}.")
    return decide_again(request, snapshot, now=now)


def decide_again(request: Request, snapshot: Snapshot, *, now: datetime) -> Verdict:
    """The same for a request that was allowed before, so that its path is known to be canonical."""
    verdict = _decide_host(request.scheme, request.host, request.port, snapshot, now)
    route = verdict.route
    if not verdict.allowed or route is None:
        return _with_details(verdict, request)
    if route.auth and request.scheme != "https":
        sentence = f"{request.host} is reached with a credential, which never travels over http. Use https."
        return Verdict(False, "plain-http", sentence, route)
    if not route.admits_path(request.path):
        sentence = f"{quoted(request.path)} is not under a path that is allowed on {request.host}."
        return _with_details(Verdict(False, "path", sentence, route), request)
    if not route.admits_method(request.method):
        allowed = ", ".join(route.methods)
        sentence = f"{quoted(request.method)} is not allowed on {request.host}, only {allowed}."
        return _with_details(Verdict(False, "method", sentence, route), request)
    return verdict


def decide_connect(host: str, port: int, snapshot: Snapshot, *, now: datetime) -> Verdict:
    """Whether a TLS connection to this host may be opened at all, before anything inside it is known."""
    verdict = _decide_host("https", host, port, snapshot, now)
    if verdict.reason in _ASKABLE_REASONS:
        return Verdict(False, verdict.reason, verdict.sentence, verdict.route, _askable({"host": host}))
    return verdict


def used_up(request: Request, route: Route) -> Verdict:
    """For what a table allows by a lease that has no uses left: whoever counts them says so.

    The ask is for the same lease again: without one it would be for good.
    """
    how = _how_to_ask(request.host, "Ask again with egress-block.")
    sentence = f"The lease for {request.host} is used up. {how}"
    verdict = Verdict(False, "used-up", sentence, route)
    if request.method == "CONNECT":  # nothing else is known of what is inside
        verdict = verdict._replace(ask=_askable({"host": request.host}))
    else:
        verdict = _with_details(verdict, request)
    if verdict.ask is None or route.lease is None:
        return verdict
    return verdict._replace(ask={**verdict.ask, "lease": _lease_again(route.lease)})


def _lease_again(lease: Lease) -> dict[str, int]:
    plain = {} if lease.max_uses is None else {"max_uses": lease.max_uses}
    if lease.expires_at is not None and lease.granted_at is not None:
        plain["ttl_seconds"] = max(1, int((lease.expires_at - lease.granted_at).total_seconds()))
    return plain


_ASKABLE_REASONS = frozenset({"no-route", "expired", "used-up", "gate", "path", "method"})


def _decide_host(scheme: str, host: str, port: int, snapshot: Snapshot, now: datetime) -> Verdict:
    try:
        if canonical_host(host) != host:
            raise BadHost(f"host {quoted(host)} is not in canonical form")
    except BadHost as error:
        return Verdict(False, "bad-host", f"The request was refused: {error}.")
    if PORTS.get(scheme) != port:
        return Verdict(False, "port", "Only https on port 443 and http on port 80 leave the bottle.")
    table = snapshot.table
    route = table.live_route(host, now)
    if route is None:
        if next(table.serving(host), None) is not None:
            how = _how_to_ask(host, "Ask again with egress-block.")
            return Verdict(False, "expired", f"The lease for {host} is over. {how}")
        how = _how_to_ask(host, "Ask for one with egress-block.")
        return Verdict(False, "no-route", f"No route allows {host}. {how}")
    if not table.gate_allows(host):
        how = _how_to_ask(host, "Ask with pipelock-block.")
        sentence = f"{host} has a route but is not on the gate's allowlist. {how}"
        return Verdict(False, "gate", sentence, route)
    return Verdict(True, "ok", "Allowed.", route)


def _how_to_ask(host: str, advice: str) -> str:
    """The advice, or why nobody can ask for this host."""
    try:
        check_askable(host)
    except BadHost as error:
        return f"It cannot be asked for: {error}."
    return advice


def _with_details(verdict: Verdict, request: Request) -> Verdict:
    """The refusal together with the narrowest ask for this request."""
    if verdict.reason not in _ASKABLE_REASONS:
        return verdict
    try:
        prefix = narrowest_prefix(request.path)
        methods = canonical_methods([request.method])
    except PolicyError:
        return verdict
    ask: dict[str, Any] = {"host": request.host}
    if prefix != "/":
        ask["path_allowlist"] = [prefix]
    ask["methods"] = list(methods)
    return Verdict(False, verdict.reason, verdict.sentence, verdict.route, _askable(ask))


def is_askable(host: str) -> bool:
    """Whether a tool call for this host is not refused at once."""
    try:
        check_askable(host)
    except BadHost:
        return False
    return True


def _askable(ask: dict[str, Any]) -> dict[str, Any] | None:
    return ask if is_askable(ask["host"]) else None
