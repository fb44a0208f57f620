"""What an agent is told about its proposal: true, and with the next step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from egress.policy.paths import prefix_allows
from supervise.kinds.image_outcomes import explain_image
from supervise.kinds.mcp_tool_outcomes import explain_call
from supervise.models import Decision, Proposal

Status = Proposal.Status
Applied = Decision.Applied
STOPPING = (
    "bot-bottle is stopping. The proposal was pending when this call last looked, and it is kept. Once "
    "bot-bottle is back, call check-proposal with its proposal_id, or make the same call again to wait."
)


@dataclass(frozen=True, slots=True)
class Outcome:
    proposal_id: str
    tool: str
    status: str
    notes: str
    granted: dict[str, Any] | None
    not_granted: dict[str, Any] | None
    live_version: int | None
    applied: str
    explanation: str

    @property
    def told_status(self) -> str:
        """Who asked for another image still waits for it after a yes, until it runs."""
        is_on_its_way = self.tool == Proposal.Tool.CAPABILITY and self.applied == Applied.WAITING
        return Status.PENDING if is_on_its_way else self.status

    @property
    def settled(self) -> bool:
        """Nothing more will happen that is worth holding the call for."""
        return self.status != Status.PENDING and self.applied != Applied.WAITING

    def at_the_stop(self) -> Outcome:
        """The same, told by a server that stops: a decision may have come since it looked."""
        return replace(self, explanation=STOPPING) if self.status == Status.PENDING else self


def outcome_of(proposal: Proposal, decision: Decision | None) -> Outcome:
    return Outcome(
        proposal_id=str(proposal.pk),
        tool=proposal.tool,
        status=proposal.status,
        notes=decision.notes if decision else "",
        granted=decision.granted if decision else None,
        not_granted=decision.not_granted if decision else None,
        live_version=decision.live_version if decision else None,
        applied=decision.applied if decision else Applied.NOTHING,
        explanation=_explain(proposal, decision),
    )


def not_granted(
    asked: Mapping[str, Any], given: Mapping[str, Any], *, ignored: Sequence[str] = ()
) -> dict[str, Any] | None:
    """The part of the ask that was not granted, or None when all of it was."""
    missing: dict[str, Any] = {}
    for key in ("host", "dockerfile", "auth"):
        if key in asked and asked[key] != given.get(key):
            missing[key] = asked[key]
    for key in ("path_allowlist", "methods"):
        refused = _refused(asked.get(key), given.get(key))
        if refused:
            missing[key] = refused
    if _ends_sooner(given.get("lease"), asked.get("lease")):
        missing["lease"] = asked.get("lease") or "no end"
    if ignored:
        missing["ignored"] = list(ignored)
    return missing or None


def _refused(asked: Sequence[str] | None, given: Sequence[str] | None) -> list[str] | str | None:
    """No list means all of them. A path is given by any prefix of it; a method only by itself."""
    if not given:
        return None
    if not asked:
        return "all"
    return [item for item in asked if not any(item == have or prefix_allows(have, item) for have in given)]


def _ends_sooner(given: Mapping[str, int] | None, asked: Mapping[str, int] | None) -> bool:
    """No number means no end of that kind."""
    given, asked = given or {}, asked or {}
    return any(given.get(key, inf) < asked.get(key, inf) for key in ("ttl_seconds", "max_uses"))


def _explain(proposal: Proposal, decision: Decision | None) -> str:
    if decision is None:
        return (
            "Not decided yet; the proposal stays in the operator's queue. Go on with other work, then call "
            "check-proposal with its proposal_id, or make the same call again to wait for it."
        )
    match proposal.status:
        case Status.REJECTED:
            return "Rejected: nothing changed. Read the notes, and do without it or ask for less."
        case Status.WITHDRAWN:
            return "Withdrawn: nothing changed."
        case Status.EXPIRED:
            return "Expired: nobody decided in time and nothing changed. Ask again if you still need it."
    changed = (
        "The operator changed your proposal: 'granted' is what is applied, 'not_granted' is what is not. "
        if proposal.status == Status.MODIFIED
        else ""
    )
    return changed + _explain_applied(proposal, decision)


def _explain_applied(proposal: Proposal, decision: Decision) -> str:
    if proposal.tool == Proposal.Tool.CAPABILITY:
        return explain_image(decision)
    if proposal.tool == Proposal.Tool.MCP_TOOL:
        return explain_call(decision)
    if decision.applied == Applied.WAITING:
        return "Approved, and being applied. Call check-proposal in a moment to see it live."
    if decision.applied == Applied.FAILED:
        return f"Approved, but not live: {decision.apply_error}. It is retried; call check-proposal later."
    if proposal.tool == Proposal.Tool.GATE:
        host = (decision.granted or {}).get("host", "the host")
        return (
            f"{host} is on the gate's allowlist (version {decision.live_version}). The gate is the second "
            "check: see with list-egress-routes whether a route leads there; if none does, use egress-block."
        )
    return f"The route is live in table version {decision.live_version}. Retry your request now."
