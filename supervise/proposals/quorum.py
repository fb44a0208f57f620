"""The quorum rule: how many operators must approve, and whose approvals count."""

from __future__ import annotations

from django.conf import settings

from supervise.access.permissions import may_decide_for
from supervise.models import Approval, Proposal
from supervise.proposals.risk import Level


def operators_needed(level: Level) -> int:
    """How many operators must approve what has this risk."""
    return int(settings.SUPERVISE_QUORUM) if level is Level.HIGH else 1


def needs_several(level: Level) -> bool:
    return operators_needed(level) > 1


def votes_for(proposal: Proposal, granted_digest: str) -> list[Approval]:
    """The approvals of exactly this grant. Uses prefetched approvals if there are any."""
    return [vote for vote in proposal.approvals.all() if vote.granted_digest == granted_digest]


def is_complete(vote: Approval) -> bool:
    """Whether this vote is the last one needed. Operators who may no longer decide do not count.

    Only proposals of high risk collect votes.
    """
    proposal = vote.proposal
    agreeing = votes_for(proposal, vote.granted_digest)
    counted = sum(may_decide_for(one.actor, proposal.bottle) for one in agreeing)
    return counted >= operators_needed(Level.HIGH)
