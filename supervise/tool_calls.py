"""Calls of managed servers' tools that an operator decides: each approval is good for one call, for an hour.

Trust boundary: arguments are the agent's, stored as sent and shown as hostile text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from django.db.models import Q
from django.utils import timezone

from botbottle.models import Bottle

from .call_outcomes import GOOD_FOR
from .canonical import digest
from .filing import file_proposal
from .models import Decision, Proposal
from .sanitize import storable_json


def ask(bottle: Bottle, server: str, tool: str, arguments: Mapping[str, Any]) -> str | None:
    """None: an earlier approval of exactly this call was not used yet, and is now. Else the proposal's id.

    Raises as `file_proposal`.
    """
    payload = {"server": server, "tool": tool, "arguments": dict(arguments)}
    approved = Decision.objects.filter(
        proposal__bottle=bottle,
        proposal__ask_digest=digest([Proposal.Tool.MCP_TOOL, storable_json(payload)]),
    )
    for decision in approved.filter(_unused()):
        if claim(decision.proposal_id):
            return None
    words = f"The agent called the tool {tool[:200]} of the bottle's MCP server {server}."
    return str(file_proposal(bottle, Proposal.Tool.MCP_TOOL, payload, words).proposal.pk)


def claim(proposal_id: UUID | str) -> bool:
    """Use the approval up. False when there is none, or it was used already."""
    mine = Decision.objects.filter(_unused(), proposal_id=proposal_id)
    return mine.update(applied=Decision.Applied.LIVE, live_at=timezone.now()) == 1


def _unused() -> Q:
    return Q(
        proposal__tool=Proposal.Tool.MCP_TOOL,
        proposal__status=Proposal.Status.APPROVED,
        applied=Decision.Applied.RECORDED,
        created_at__gt=timezone.now() - GOOD_FOR,
    )
