"""How an approved ask, or an operator by itself, changes a route table, and the sentences about it.

Pure. Operators change or withdraw one route as they say. A merge of an ask never takes reach away, and
applying it twice is the same as once. Its rules:

- The starting point is the route that decides for the host today: its own, else the longest wildcard above
  it. One whose lease is over counts as absent.
- Paths and methods are united, separately; as a route allows every method on every path, combinations that
  nobody asked for are warned about. "All" absorbs everything, so a bare route stays bare.
- Of two leases the later end and the higher count win; no lease wins over any, so asking without one makes a
  leased route permanent. Each of these is warned about. The count of uses restarts when uses are asked for.
- auth, dlp and pinned_addresses of a reachable host stay as they are unless an operator sets them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from typing import Any, Literal

from egress.policy.asks import parse_operator_route
from egress.policy.describe import (
    change_warnings,
    describe_change,
    describe_effects,
    describe_warnings,
    describe_withdrawal,
    name_warnings,
    widens,
)
from egress.policy.errors import BadRoute, quoted
from egress.policy.hostnames import canonical_pattern
from egress.policy.routes import Lease, Route, whole_second
from egress.policy.table import RouteTable

_UNITED_FIELDS = ("host", "path_allowlist", "methods", "lease")  # of the old route and the ask
_OPERATOR_FIELDS = tuple(
    field.name for field in fields(Route) if field.init and field.name not in _UNITED_FIELDS
)


@dataclass(frozen=True, slots=True)
class Merge:
    """The result of a merge. `effects` and `warnings` are sentences for the operator.

    `granted` is what the agent may know that it was given. `ignored` names the fields of the ask that had no
    effect because only operators change them.
    """

    table: RouteTable
    changed: bool
    effects: tuple[str, ...]
    warnings: tuple[str, ...]
    granted: dict[str, Any]
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RouteChange:
    """One line of a diff between two tables. At the gate `before` and `after` hold only the host."""

    part: Literal["route", "gate"]
    kind: Literal["added", "removed", "changed"]
    host: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None


def merge_route(table: RouteTable, ask: Mapping[str, Any], *, now: datetime, operator: bool = False) -> Merge:
    """`ask` came from `asks`. With `operator`, its auth, dlp and pinned_addresses replace old ones."""
    asked = _asked_route(ask, whole_second(now, "now"))
    base = table.live_route(asked.host, now)
    merged, ignored = _united(base, asked, ask, operator=operator) if base else (asked, ())
    if base and replace(merged, host=base.host) == base:
        new_table = table.with_gate_host(asked.host)
    else:
        new_table = table.with_route(merged)
    return Merge(
        table=new_table,
        changed=new_table != table,
        effects=describe_effects(base, merged, table) + tuple(_left_alone(name, merged) for name in ignored),
        warnings=describe_warnings(base, merged, asked, table),
        granted=merged.as_public_dict(),
        ignored=ignored,
    )


def merge_gate_host(table: RouteTable, host: str) -> Merge:
    """Add the host to the gate; it still needs a route to be reachable."""
    host = canonical_pattern(host)
    new_table = table.with_gate_host(host)
    changed = new_table != table
    effect = f"the gate lets {host} through"
    if not changed:
        effect = f"nothing changes: {effect} already"
    routed = next(table.serving(host), None) is not None
    warnings = () if routed else (f"{host} has no route yet, so it stays unreachable until one is approved",)
    return Merge(new_table, changed, (effect,), (*warnings, *name_warnings(host)), {"host": host})


@dataclass(frozen=True, slots=True)
class Revision:
    """The result of an operator's change of one route.

    It also `widens` if a withdrawn route leaves the host to a wider one above it.
    """

    table: RouteTable
    before: Route
    after: Route | None  # None: withdrawn
    effects: tuple[str, ...]
    warnings: tuple[str, ...]
    widens: bool


def change_route(table: RouteTable, host: str, fields: Mapping[str, Any], *, now: datetime) -> Revision:
    """Replace the given fields of the host's own route; null, or "all", removes one.

    The fields are those that an operator may give for a proposal too. A given lease begins now. Raises
    PolicyError for an unknown host, for wrong fields, and if nothing changes.
    """
    before = _own_route(table, host)
    if fields.get("host", host) != host:
        raise BadRoute(f"The route of {host} stays that of {host}: another host needs a route of its own.")
    pinned = list(before.pinned_addresses)  # private names are only accepted with them
    asked = _asked_route(
        parse_operator_route({"pinned_addresses": pinned, **fields, "host": host}),
        whole_second(now, "now"),
    )
    given = {name: getattr(asked, name) for name in fields if name != "host"}
    after = replace(before, **given)
    if after == before:
        raise BadRoute(f"There is nothing to change: the route of {host} says this already.")
    effects = describe_change(before, after)
    return Revision(
        table.with_route(after), before, after, effects, change_warnings(before, after), widens(before, after)
    )


def withdraw_route(table: RouteTable, host: str, *, now: datetime) -> Revision:
    """Remove the host's own route, and its host from the gate. Raises PolicyError for an unknown host."""
    before = _own_route(table, host)
    new_table = table.without_route(host)
    left = new_table.live_route(host, now) if not before.is_over(now) else None
    return Revision(
        new_table,
        before,
        None,
        describe_withdrawal(before, left),
        () if left is None else change_warnings(before, replace(left, host=host)),
        left is not None and widens(before, left),
    )


def takes_away(before: RouteTable, after: RouteTable, *, now: datetime) -> bool:
    """Whether a route or the gate allowed anything before that it does not allow after.

    What cannot be compared, such as a restarted count of uses, counts as taken away.
    """
    routes = ((route, after.get(route.host)) for route in before.routes if not route.is_over(now))
    return any(now is None or widens(now, route) for route, now in routes) or not (
        set(before.gate_hosts) <= set(after.gate_hosts)
    )


def _own_route(table: RouteTable, host: str) -> Route:
    route = table.get(host)
    if route is None:
        raise BadRoute(f"There is no route of {quoted(host)} in the table.")
    return route


def diff_tables(old: RouteTable, new: RouteTable) -> tuple[RouteChange, ...]:
    """Compare two tables: route by route, then the gate, each in order of hosts."""
    changes: list[RouteChange] = []
    for host in sorted({route.host for route in (*old.routes, *new.routes)}):
        before, after = (route.as_dict() if (route := table.get(host)) else None for table in (old, new))
        if before != after:
            kind: Literal["removed", "changed"] = "changed" if after else "removed"
            changes.append(RouteChange("route", kind if before else "added", host, before, after))
    for host in sorted(set(old.gate_hosts) ^ set(new.gate_hosts)):
        if host in new.gate_hosts:
            changes.append(RouteChange("gate", "added", host, None, {"host": host}))
        else:
            changes.append(RouteChange("gate", "removed", host, {"host": host}, None))
    return tuple(changes)


def _asked_route(ask: Mapping[str, Any], now: datetime) -> Route:
    """The route that the ask describes. Its lease begins now."""
    lease = ask.get("lease")
    route = Route.from_dict({key: value for key, value in ask.items() if value and key != "lease"})
    return replace(route, lease=_lease_from(lease, now)) if lease else route


def _lease_from(lease: Mapping[str, int], now: datetime) -> Lease:
    ttl = lease.get("ttl_seconds")
    return Lease(now + timedelta(seconds=ttl) if ttl else None, lease.get("max_uses"), granted_at=now)


def _united(
    base: Route, asked: Route, ask: Mapping[str, Any], *, operator: bool
) -> tuple[Route, tuple[str, ...]]:
    set_by_ask = [name for name in _OPERATOR_FIELDS if ask.get(name)]
    differing = tuple(name for name in set_by_ask if getattr(asked, name) != getattr(base, name))
    merged = replace(
        base,
        host=asked.host,
        path_allowlist=_both(base.path_allowlist, asked.path_allowlist),
        methods=_both(base.methods, asked.methods),
        lease=_longer_lease(base.lease, asked.lease),
        **{name: getattr(asked, name) for name in differing if operator},
    )
    return merged, () if operator else differing


def _both(some: tuple[str, ...], others: tuple[str, ...]) -> tuple[str, ...]:
    """The union of two lists, where empty means all. Routes remove prefixes that others cover."""
    return (*some, *others) if some and others else ()


def _longer_lease(base: Lease | None, asked: Lease | None) -> Lease | None:
    if base is None or asked is None:
        return None
    ends = [lease.expires_at for lease in (base, asked) if lease.expires_at is not None]
    uses = [lease.max_uses for lease in (base, asked) if lease.max_uses is not None]
    expires_at = max(ends) if len(ends) == 2 else None
    max_uses = max(uses) if len(uses) == 2 else None
    if expires_at is None and max_uses is None:
        return None
    return Lease(expires_at, max_uses, asked.granted_at if max_uses else base.granted_at)


def _left_alone(name: str, route: Route) -> str:
    return f"{name} is ignored: {route.host} is already reachable, and only an operator changes its {name}"
