"""What an agent is told about its proposal: the truth, and the next step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from supervise.models import Decision, Proposal
from supervise.proposals.kind import kind_of

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
    status_for_agent: str  # the same for the agent, which may still wait for what was approved
    notes: str
    granted: dict[str, Any] | None
    not_granted: dict[str, Any] | None
    live_version: int | None
    applied: str
    explanation: str

    @property
    def is_final(self) -> bool:
        """Whether nothing more will happen that a call should wait for."""
        return self.status != Status.PENDING and self.applied != Applied.WAITING

    def at_the_stop(self) -> Outcome:
        """The same, from a server that stops: a decision may have come since it last looked."""
        return replace(self, explanation=STOPPING) if self.status == Status.PENDING else self


def outcome_of(proposal: Proposal, decision: Decision | None) -> Outcome:
    return Outcome(
        proposal_id=str(proposal.pk),
        tool=proposal.tool,
        status=proposal.status,
        status_for_agent=kind_of(proposal).status_for_agent(decision) if decision else proposal.status,
        notes=decision.notes if decision else "",
        granted=decision.granted if decision else None,
        not_granted=decision.not_granted if decision else None,
        live_version=decision.live_version if decision else None,
        applied=decision.applied if decision else Applied.NOTHING,
        explanation=_explain(proposal, decision),
    )


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
    return changed + kind_of(proposal).explain(decision)
