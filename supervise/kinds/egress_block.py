"""`egress-block`: an agent asks to reach a host, and an approval opens a route."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from datetime import datetime
from math import inf
from typing import Any

from django.http import QueryDict

from botbottle.models import Bottle
from egress.policy.asks import parse_egress_ask, parse_operator_route
from egress.policy.merge import Merge, merge_route
from egress.policy.paths import prefix_allows, reduce_prefixes
from egress.policy.table import RouteTable
from supervise.kinds.route_edit import UNITS, RouteEdit
from supervise.kinds.route_table import TableKind
from supervise.models import Decision
from supervise.proposals.kind import WAITS, Edit, Json
from supervise.proposals.risk import Risk, route_risk

MOST_PATHS = 20  # of one draft: the newest ones


class EgressBlock(TableKind):
    name = "egress-block"
    shown_keys = ("host", "path_allowlist", "methods", "lease")
    edit_template = "supervise/proposal/_edit_route.html"
    title = "Ask to reach a host"
    description = (
        "Ask to reach a host that the egress proxy refuses. Use it after a 403 from the proxy, with the "
        "arguments its refusal suggests; ask for the narrowest paths and methods that do the job, they are "
        f"approved sooner. {WAITS} After approval retry the refused request: the route is live."
    )
    required = ("host",)
    properties = {
        "host": {
            "type": "string",
            "minLength": 1,
            "description": "A public hostname such as api.example.com: no scheme, no port, no IP address.",
        },
        "path_allowlist": {
            "type": "array",
            "items": {"type": "string", "pattern": "^/"},
            "description": "Path prefixes, each starting with '/'; '/repos' allows /repos and /repos/x. "
            "Leave it out to ask for all paths.",
        },
        "methods": {
            "type": "array",
            "items": {"type": "string"},
            "description": "HTTP methods such as GET. Leave it out to ask for all.",
        },
        "auth": {
            "type": "object",
            "properties": {
                "scheme": {"type": "string", "enum": ["Bearer", "token"]},
                "token_ref": {
                    "type": "string",
                    "description": "The name of a credential the operator keeps. Never put a secret here.",
                },
            },
            "required": ["scheme", "token_ref"],
            "additionalProperties": False,
            "description": "Ask that the proxy adds an Authorization header for you.",
        },
        "lease": {
            "type": "object",
            "properties": {
                "ttl_seconds": {"type": "integer", "minimum": 1},
                "max_uses": {"type": "integer", "minimum": 1},
            },
            "additionalProperties": False,
            "description": "Ask only for a time or a number of requests.",
        },
    }

    def parse(self, bottle: Bottle, arguments: Mapping[str, Any]) -> Json:
        return parse_egress_ask(arguments)

    def check(self, payload: Json) -> Json:
        return parse_operator_route(payload)

    def union(self, payloads: Sequence[Json]) -> Json:
        return {"host": payloads[0]["host"], **_union_of_asks(payloads)}

    def summary(self, payload: Json) -> str:
        methods = ", ".join(payload.get("methods") or ["all methods"])
        paths = payload.get("path_allowlist")
        where = f"under {', '.join(paths)}" if paths else "on all paths"
        return f"{methods} on {payload['host']} {where}{_credential(payload)}{_ending(payload)}"

    def merge(self, table: RouteTable, payload: Json, *, now: datetime, by_operator: bool) -> Merge:
        return merge_route(table, payload, now=now, operator=by_operator)

    def risk(self, payload: Json, table: RouteTable, warnings: Sequence[str], known_hosts: Set[str]) -> Risk:
        return route_risk(payload, table, warnings, known_hosts=known_hosts)

    def edit_of(self, payload: Json) -> Edit:
        return RouteEdit.of_payload(payload)

    def edit_of_form(self, form: QueryDict) -> Edit:
        return RouteEdit.of_form(form)

    def not_granted(self, asked: Json, payload: Json, merged: Merge) -> Json | None:
        return not_granted(asked, {**payload, **_effective_scope(merged)}, ignored=merged.ignored)

    def explain_live(self, decision: Decision) -> str:
        return f"The route is live in table version {decision.live_version}. Retry your request now."


def not_granted(
    asked: Mapping[str, Any], given: Mapping[str, Any], *, ignored: Sequence[str] = ()
) -> Json | None:
    missing = {key: asked[key] for key in ("host", "auth") if key in asked and asked[key] != given.get(key)}
    for key in ("path_allowlist", "methods"):
        refused = _refused(asked.get(key), given.get(key))
        if refused:
            missing[key] = refused
    if _ends_sooner(given.get("lease"), asked.get("lease")):
        missing["lease"] = asked.get("lease") or "no end"
    if ignored:
        missing["ignored"] = list(ignored)
    return missing or None


def _effective_scope(merged: Merge) -> Json:
    """What the bottle has after the merge, which can be more than this proposal gave."""
    granted = merged.granted
    scope: Json = {key: granted[key] for key in ("path_allowlist", "methods") if key in granted}
    return scope if granted.get("lease") else {**scope, "lease": None}


def _refused(asked: Sequence[str] | None, given: Sequence[str] | None) -> list[str] | str | None:
    """No list means all. A path is given by any prefix of it; a method only by itself."""
    if not given:
        return None
    if not asked:
        return "all"
    return [item for item in asked if not any(item == have or prefix_allows(have, item) for have in given)]


def _ends_sooner(given: Mapping[str, int] | None, asked: Mapping[str, int] | None) -> bool:
    """No number means no end of that kind."""
    given, asked = given or {}, asked or {}
    return any(given.get(key, inf) < asked.get(key, inf) for key in ("ttl_seconds", "max_uses"))


def _credential(payload: Mapping[str, Any]) -> str:
    return f", carrying {payload['auth']['token_ref']}" if payload.get("auth") else ""


def _ending(payload: Mapping[str, Any]) -> str:
    lease = payload.get("lease") or {}
    ending = ""
    if seconds := lease.get("ttl_seconds"):
        unit = next(name for name, size in UNITS.items() if seconds % size == 0)
        count = seconds // UNITS[unit]
        ending += f", for {count} {unit if count > 1 else unit.removesuffix('s')}"
    if uses := lease.get("max_uses"):
        ending += f", at most {uses} times"
    return ending


def _union_of_asks(asks: Sequence[Json]) -> Json:
    """The paths and methods of all asks. If one ask wants every path or method, so does the union.

    It has a lease, the newest one, only if every ask has one.
    """
    united: Json = {}
    paths = [ask.get("path_allowlist") for ask in asks]
    if all(paths):
        newest = list(dict.fromkeys(path for some in paths for path in some or ()))[:MOST_PATHS]
        united["path_allowlist"] = list(reduce_prefixes(newest))
    methods = [ask.get("methods") for ask in asks]
    if all(methods):
        united["methods"] = sorted({method for some in methods for method in some or ()})
    leases = [ask.get("lease") for ask in asks]
    if all(leases):
        united["lease"] = leases[0]
    return united
