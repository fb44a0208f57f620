"""What an operator is shown of a proposal: the exact change it would make now, its risk, a digest of both.

The digest covers the proposal, the part of the bottle's state it would change, and its risk, so that an
unrelated change elsewhere does not make a review stale, and one that an operator should know of always does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Set
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from django.utils import timezone

from botbottle.models import Bottle
from egress.models import RouteTableVersion
from egress.policy.asks import parse_gate_ask, parse_operator_route
from egress.policy.describe import table_text
from egress.policy.hostnames import pattern_matches
from egress.policy.merge import Merge, merge_gate_host, merge_route
from egress.policy.routes import Route
from egress.policy.table import RouteTable
from egress.tables import versions
from supervise.bottles.image_drift import ImageFindings, Names
from supervise.bottles.images import can_be_rebuilt, check_dockerfile_for
from supervise.digests import digest
from supervise.errors import BadAsk
from supervise.kinds.dockerfile_review import warnings_of
from supervise.models import Proposal
from supervise.proposals.risk import Risk, assess
from supervise.sanitize import without_nul_json

MOST_WITH_LINES = 64 * 1024  # characters of a call's arguments


@dataclass(frozen=True, slots=True)
class Review:
    proposal: Proposal
    table_version: int
    at: datetime
    before: str  # what the proposal would change, as text an operator can read
    after: str
    effects: tuple[str, ...]
    warnings: tuple[str, ...]
    risk: Risk
    seen_digest: str
    table_after: RouteTable | None = None  # None where the proposal changes no table
    notes: tuple[str, ...] = ()  # what could not be found out; the digest does not cover it


def review(
    proposal: Proposal,
    version: RouteTableVersion,
    *,
    now: datetime | None = None,
    edited: dict[str, Any] | None = None,
    known: Set[str] | None = None,
    named: ImageFindings | None = None,
) -> Review:
    """The proposal against one version of its bottle's table. Time matters: leases end.

    With `edited`, an operator's checked payload, it tells what that one would do instead; the digest is the
    same, since what was asked and what is there are. `known` are the hosts that bottles reach; who reviews
    many looks them up once. `named` is what the engine has under the names in Dockerfiles: asked before, by
    who shows or decides, since here a transaction may be open.
    """
    now = now or timezone.now()
    if known is None:
        known = versions.hosts_reached() if "host" in proposal.payload else frozenset()
    around = _Context(version.table, now, known, named or {})
    asked = _preview(proposal, proposal.payload, around, by_operator=False)
    shown = asked
    if edited is not None:
        shown = _preview(proposal, edited, around, by_operator=True)
    state = [affected_state(proposal, version.table, now), asked.risk.level, asked.risk.reasons]
    return Review(
        proposal=proposal,
        table_version=version.version,
        at=now,
        seen_digest=digest([proposal.digest, *state]),
        **shown._asdict(),
    )


class _Context(NamedTuple):
    """What a proposal meets."""

    table: RouteTable
    now: datetime
    known: Set[str]
    named: ImageFindings


class _Preview(NamedTuple):
    """What a yes to one payload would do."""

    before: str
    after: str
    effects: tuple[str, ...]
    warnings: tuple[str, ...]
    risk: Risk
    table_after: RouteTable | None
    notes: tuple[str, ...]


def _preview(proposal: Proposal, payload: dict[str, Any], around: _Context, *, by_operator: bool) -> _Preview:
    effects: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    table, table_after = around.table, None
    if proposal.tool == Proposal.Tool.MCP_TOOL:
        before, after = "", _readable(payload["arguments"])
        called = f"the tool {payload['tool']} of the server {payload['server']}"
        effects = (f"{called} is called once, with these arguments",)
    elif proposal.tool == Proposal.Tool.CAPABILITY:
        before, after = proposal.bottle.dockerfile, payload["dockerfile"]
        names = around.named.get((proposal.bottle_id, after), Names())
        effects, notes = _image_effects(proposal.bottle), names.notes
        warnings = (*names.warnings, *warnings_of(before, after))
    else:
        merged = preview(proposal, payload, table, now=around.now, by_operator=by_operator)
        before, after = table_text(table), table_text(merged.table)
        effects, warnings, table_after = merged.effects, merged.warnings, merged.table
    risk = assess(proposal.tool, payload, table, warnings, known=around.known)
    return _Preview(before, after, effects, warnings, risk, table_after, notes)


def _readable(arguments: dict[str, Any]) -> str:
    """With lines, unless that takes long: an open page asks for its cards all the time."""
    text = json.dumps(arguments, ensure_ascii=False)
    return text if len(text) > MOST_WITH_LINES else json.dumps(arguments, indent=2, ensure_ascii=False)


def _image_effects(bottle: Bottle) -> tuple[str, ...]:
    if not can_be_rebuilt(bottle):
        return ("the Dockerfile is recorded; the bottle has no sandbox here that could be rebuilt",)
    return (
        "the image is built from this Dockerfile, with the bottle's own routes as its only network; base "
        "images are not pulled",
        "once a canary of it works, the bottle is replaced, on the same workspace; the image before is kept",
    )


def preview(
    proposal: Proposal, payload: dict[str, Any], table: RouteTable, *, now: datetime, by_operator: bool
) -> Merge:
    """The table as it would be if this payload were applied. Only an operator's own payload changes auth."""
    if proposal.tool == Proposal.Tool.GATE:
        return merge_gate_host(table, payload["host"])
    return merge_route(table, payload, now=now, operator=by_operator)


def checked_payload(proposal: Proposal, payload: dict[str, Any]) -> dict[str, Any]:
    """An operator's edited payload in canonical form. Raises BadAsk."""
    try:
        checked = _CHECKS[proposal.tool](without_nul_json(payload))
        if proposal.tool == Proposal.Tool.CAPABILITY:
            check_dockerfile_for(proposal.bottle, checked["dockerfile"])
    except ValueError as error:  # the parsers' own refusals
        raise BadAsk(str(error)) from error
    asked, given = proposal.payload.get("host", ""), checked.get("host", "")
    if given != asked and not pattern_matches(asked, given):
        raise BadAsk(f"The agent asked for {asked}. Reject this proposal to answer about another host.")
    return checked


def _check_gate(payload: dict[str, Any]) -> dict[str, Any]:
    checked = parse_gate_ask({key: value for key, value in payload.items() if key != "host"})
    if payload.get("host", checked["host"]) != checked["host"]:
        raise BadAsk("The payload's host is taken from its failed_url: change that one, or leave both.")
    return dict(checked)


def _check_capability(payload: dict[str, Any]) -> dict[str, Any]:
    if set(payload) != {"dockerfile"} or not isinstance(payload["dockerfile"], str):
        raise BadAsk('The payload must be {"dockerfile": "…"}.')
    return payload


def _check_call(payload: dict[str, Any]) -> dict[str, Any]:
    raise BadAsk("There is nothing to modify: one call is made, or it is not. Approve or reject.")


_CHECKS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    Proposal.Tool.EGRESS: parse_operator_route,
    Proposal.Tool.GATE: _check_gate,
    Proposal.Tool.CAPABILITY: _check_capability,
    Proposal.Tool.MCP_TOOL: _check_call,
}


def affected_state(proposal: Proposal, table: RouteTable, now: datetime) -> object:
    """The part of the bottle's state that decides what the proposal would do."""
    if proposal.tool == Proposal.Tool.MCP_TOOL:
        return None  # what a call does, its server alone knows
    if proposal.tool == Proposal.Tool.CAPABILITY:
        return [proposal.bottle.dockerfile, can_be_rebuilt(proposal.bottle)]
    related = [[route.as_dict(), route.is_over(now)] for route in related_routes(proposal, table)]
    return [related, table.gate_allows(proposal.payload["host"])]


def related_routes(proposal: Proposal, table: RouteTable) -> list[Route]:
    """Those that the ask for a host could change, or that could decide for the host."""
    host = proposal.payload["host"]
    return [
        route
        for route in table.routes
        if route.host == host or pattern_matches(route.host, host) or pattern_matches(host, route.host)
    ]
