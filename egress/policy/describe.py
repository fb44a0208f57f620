"""Describes a change of a route table in sentences for the operator: what becomes reachable, what no longer
is, and what exceeds the ask.

Pure. Hosts, paths and methods in these sentences are canonical, so they are safe to show as plain text.
"""

from __future__ import annotations

from typing import Any

from egress.policy.hostnames import WILDCARD, mixed_script, pattern_matches
from egress.policy.paths import prefix_allows
from egress.policy.routes import Dlp, Lease, Route
from egress.policy.table import RouteTable

_SEARCHED = {False: 0, None: 1, True: 2}  # how much of the outgoing data, by `dlp.out`


def describe_effects(base: Route | None, merged: Route, table: RouteTable) -> tuple[str, ...]:
    """Describe what changes. `base` is the route that decided for the host so far."""
    host = merged.host
    if base is None:
        effects = [
            f"newly reachable: {_methods(merged.methods)} on {_where(merged, merged.path_allowlist)}"
            f"{_credential(merged)}{_ending(merged)}{operator_settings(merged)}"
        ]
    else:
        effects = [*_new_reach(base, merged), *_new_terms(base, merged)]
        if effects and base.host != host:
            effects.append(f"{host} gets a route of its own, which starts from that of {base.host}")
    if not table.gate_allows(host):
        effects.append(f"the gate lets {host} through")
    if effects:
        return tuple(effects)
    reach = f"{_methods(merged.methods)} on {_where(merged, merged.path_allowlist)}"
    return (f"nothing changes: already reachable are {reach}",)


def describe_warnings(base: Route | None, merged: Route, asked: Route, table: RouteTable) -> tuple[str, ...]:
    """Warn about what an operator could overlook: widenings, and reach that nobody asked for."""
    warnings = list(name_warnings(merged.host))
    warnings += [
        f"{route.host} keeps its own route, whatever {merged.host} allows"
        for route in table.routes
        if merged.host.startswith(WILDCARD) and _is_below(route.host, merged.host)
    ]
    if base is not None:
        warnings += [*_widenings(base, merged), *_beyond_the_ask(base, merged, asked)]
    return tuple(warnings)


def describe_change(before: Route, after: Route) -> tuple[str, ...]:
    """Describe what an operator's own change of one route grants and removes."""
    return (*_new_reach(before, after), *_lost_reach(before, after), *_new_terms(before, after))


def describe_withdrawal(route: Route, left: Route | None) -> tuple[str, ...]:
    """Describe a withdrawal. `left` is the wildcard route that decides for the host afterwards, if there is
    one.
    """
    if left is None:
        return (f"no longer reachable: {route.host}; open connections that use its route are cut at once",)
    return (
        f"the route of {route.host} is gone; open connections that no other route allows are cut at once",
        f"{route.host} stays reachable by the route of {left.host}:"
        f" {_methods(left.methods)} {_paths(left.path_allowlist)}{_credential(left)}{_ending(left)}",
    )


def change_warnings(before: Route, after: Route) -> tuple[str, ...]:
    """Warn about widenings, and about data that is no longer searched."""
    warnings = [*name_warnings(after.host), *_widenings(before, after)]
    if before.dlp.searches_requests and not after.dlp.searches_requests:
        warnings.append(f"what is sent to {after.host} is no longer searched for secrets")
    if after.is_bare and not before.is_bare:
        warnings.append(f"{after.host} is tunnelled from now on: what is inside is not inspected")
    if before.dlp.incoming and not after.dlp.incoming:
        warnings.append(f"answers of {after.host} are no longer searched for secrets")
    return tuple(warnings)


def widens(before: Route, after: Route) -> bool:
    """Whether `after` allows anything that `before` did not. What cannot be compared counts as more."""
    return (
        new_paths(before, after) is not None
        or new_methods(before, after) is not None
        or (after.auth is not None and after.auth != before.auth)
        or (before.lease is not None and _outlasts_or_restarts_count(after.lease, before.lease))
        or bool(set(after.pinned_addresses) - set(before.pinned_addresses))
        or bool(before.pinned_addresses and not after.pinned_addresses)
        or _SEARCHED[after.dlp.out] < _SEARCHED[before.dlp.out]
        or after.dlp.incoming < before.dlp.incoming
    )


def name_warnings(host: str) -> tuple[str, ...]:
    warnings = []
    if host.startswith(WILDCARD):
        warnings.append(f"{host} covers every name below {host[2:]}, also names that do not exist yet")
    if mixed_script(host):
        warnings.append(f"{host} is written in letters that can imitate another name")
    return tuple(warnings)


def new_paths(base: Route, merged: Route) -> tuple[str, ...] | None:
    """Prefixes that `base` did not allow; empty for "all paths", None when there are none."""
    if not base.path_allowlist:
        return None
    if not merged.path_allowlist:
        return ()
    return tuple(path for path in merged.path_allowlist if not _covered(path, base.path_allowlist)) or None


def new_methods(base: Route, merged: Route) -> tuple[str, ...] | None:
    """Methods that `base` did not allow; empty for "all methods", None when there are none."""
    if not base.methods:
        return None
    if not merged.methods:
        return ()
    return tuple(method for method in merged.methods if method not in base.methods) or None


def table_text(table: RouteTable) -> str:
    """A route table as text with one fact on each line, so that a line diff shows exactly what changes."""
    lines: list[str] = []
    for route in table.as_dict()["routes"]:
        lines.append(f"route {route['host']}")
        lines += [f"  {key}: {value}" for key, value in _facts(route)]
    lines += [f"gate {host}" for host in table.gate_hosts]
    return "\n".join(lines)


def _facts(route: dict[str, Any]) -> list[tuple[str, object]]:
    facts: list[tuple[str, object]] = [("path", path) for path in route.get("path_allowlist") or ["(all)"]]
    facts += [("method", method) for method in route.get("methods") or ["(all)"]]
    for key, value in sorted(route.items()):
        if key in {"host", "path_allowlist", "methods"} or not value:
            continue
        if isinstance(value, dict):
            facts += [(f"{key}.{name}", value[name]) for name in sorted(value) if value[name] is not None]
        else:
            facts += [(key, item) for item in value]
    return facts


def _new_reach(base: Route, merged: Route) -> list[str]:
    reach = []
    paths, methods = new_paths(base, merged), new_methods(base, merged)
    if paths is not None:
        where = _where(merged, paths)
        reach.append(f"newly reachable: {_methods(merged.methods)} on {where}{_credential(merged)}")
    if methods is not None:
        where = _where(merged, merged.path_allowlist)
        reach.append(f"newly allowed: {_methods(methods)} on {where}{_credential(merged)}")
    return reach


def _lost_reach(before: Route, after: Route) -> list[str]:
    lost = []
    paths, methods = new_paths(after, before), new_methods(after, before)
    if paths:
        lost.append(f"no longer reachable: {_where(before, paths)}")
    elif paths is not None:
        lost.append(f"{after.host} stays reachable only {_paths(after.path_allowlist)}, so far on all paths")
    if methods:
        lost.append(f"no longer allowed: {_methods(methods)} on {after.host}")
    elif methods is not None:
        lost.append(
            f"{after.host} stays reachable only with {_methods(after.methods)}, so far with all methods"
        )
    return lost


def _new_terms(base: Route, merged: Route) -> list[str]:
    terms = []
    if base.lease != merged.lease:
        terms.append(f"{merged.host} stays reachable {_duration(merged.lease)}")
    if base.auth != merged.auth:
        terms.append(f"changed credential: {merged.host}{_credential(merged) or '; none'}")
    if (base.dlp, base.pinned_addresses) != (merged.dlp, merged.pinned_addresses):
        terms.append(f"changed settings: {merged.host}{operator_settings(merged) or '; none'}")
    return terms


def _widenings(base: Route, merged: Route) -> list[str]:
    host, warnings = merged.host, []
    if new_paths(base, merged) == ():
        warnings.append(f"widening: all paths of {host}, so far only {_paths(base.path_allowlist)}")
    if new_methods(base, merged) == ():
        warnings.append(f"widening: all methods on {host}, so far only {_methods(base.methods)}")
    if base.lease and not merged.lease:
        warnings.append(f"widening: {host} becomes reachable for good, so far {_duration(base.lease)}")
    elif base.lease and merged.lease and base.lease.expires_at and not merged.lease.expires_at:
        warnings.append(f"widening: {host} no longer ends at a set time, so far {_duration(base.lease)}")
    elif base.lease and merged.lease and base.lease.max_uses and not merged.lease.max_uses:
        warnings.append(f"widening: the uses of {host} are no longer limited, so far {_duration(base.lease)}")
    return warnings


def _beyond_the_ask(base: Route, merged: Route, asked: Route) -> list[str]:
    """A route allows every method on every path, under one lease: a union can allow more than its parts."""
    warnings = []
    paths, methods = new_paths(base, merged), new_methods(base, merged)
    if paths is not None and asked.methods and merged.methods != asked.methods:
        warnings.append(
            f"more than asked: {_methods(merged.methods)} may be used {_paths(paths)},"
            f" asked was only {_methods(asked.methods)}"
        )
    if methods is not None and asked.path_allowlist and not _all_covered(merged, asked):
        warnings.append(
            f"more than asked: {_methods(methods)} may be used {_paths(merged.path_allowlist)},"
            f" asked was only {_paths(asked.path_allowlist)}"
        )
    if (paths is not None or methods is not None) and asked.lease and _outlasts(merged.lease, asked.lease):
        rest = _duration(merged.lease)
        warnings.append(f"more than asked: what is new lasts as long as the rest of {merged.host}, {rest}")
    return warnings


def _all_covered(merged: Route, asked: Route) -> bool:
    return bool(merged.path_allowlist) and all(
        _covered(path, asked.path_allowlist) for path in merged.path_allowlist
    )


def _outlasts(lease: Lease | None, asked: Lease) -> bool:
    if lease is None:
        return True
    later = asked.expires_at is not None and (lease.expires_at is None or lease.expires_at > asked.expires_at)
    more = asked.max_uses is not None and (lease.max_uses is None or lease.max_uses > asked.max_uses)
    return later or more


def _outlasts_or_restarts_count(lease: Lease | None, before: Lease) -> bool:
    if _outlasts(lease, before):
        return True
    return lease is not None and before.max_uses is not None and lease.granted_at != before.granted_at


def _covered(path: str, prefixes: tuple[str, ...]) -> bool:
    return any(prefix_allows(prefix, path) for prefix in prefixes)


def _is_below(name: str, pattern: str) -> bool:
    return name != pattern and pattern_matches(pattern, name.removeprefix(WILDCARD))


def _methods(methods: tuple[str, ...]) -> str:
    return ", ".join(methods) or "all methods"


def _paths(prefixes: tuple[str, ...]) -> str:
    return f"under {', '.join(prefixes)}" if prefixes else "on all paths"


def _where(route: Route, prefixes: tuple[str, ...]) -> str:
    return f"{route.host} {_paths(prefixes)}" if prefixes else f"all paths of {route.host}"


def _credential(route: Route) -> str:
    return f"; carries {route.auth.token_ref}" if route.auth else ""


def _ending(route: Route) -> str:
    return f"; {_duration(route.lease)}" if route.lease else ""


def _duration(lease: Lease | None) -> str:
    if lease is None:
        return "for good"
    until = [f"until {lease.expires_at:%Y-%m-%d %H:%M:%S} UTC"] if lease.expires_at else []
    uses = [f"for at most {lease.max_uses} uses"] if lease.max_uses else []
    return ", ".join(until + uses)


def operator_settings(route: Route) -> str:
    """The settings that only operators change, as the end of a sentence; empty if all are defaults."""
    pinned = f"; pinned to {', '.join(route.pinned_addresses)}" if route.pinned_addresses else ""
    if route.dlp == Dlp():
        return pinned
    scanned = [
        name
        for name, on in (("requests", route.dlp.searches_requests), ("answers", route.dlp.incoming))
        if on
    ]
    return f"{pinned}; scanned: {' and '.join(scanned) or 'nothing'}"
