"""The one decision about a request, shared by the proxy and by the console's preview. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

from egress.policy.errors import BadHost, BadPath, PolicyError, quoted
from egress.policy.hostnames import canonical_host, check_askable
from egress.policy.paths import canonical_path, narrowest_prefix
from egress.policy.routes import Lease, Route, canonical_methods
from egress.policy.table import Snapshot

PORTS = {"https": 443, "http": 80}


class Request(NamedTuple):  # made for every request: much cheaper than a frozen dataclass
    """A request that a bottle wants to send. `path` is without the query; `host` is in canonical form."""

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
    """Decide again about a request that was allowed before, so that its path is known to be canonical."""
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
    """The verdict about a request that the table allows, but whose lease has no uses left.

    The ask is for the same lease again: without one it would be permanent.
    """
    how = _how_to_ask(request.host, "Ask again with egress-block.")
    sentence = f"The lease for {request.host} is used up. {how}"
    verdict = Verdict(False, "used-up", sentence, route)
    if request.method == "CONNECT":  # nothing is known about the requests inside
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
    """Return the advice, or why nobody can ask for this host."""
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
    """Whether a tool call for this host would be queued and not refused at once."""
    try:
        check_askable(host)
    except BadHost:
        return False
    return True


def _askable(ask: dict[str, Any]) -> dict[str, Any] | None:
    return ask if is_askable(ask["host"]) else None
