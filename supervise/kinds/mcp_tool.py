"""Calls of managed servers' tools that an operator decides: each approval is good for one call, for an hour.

Trust boundary: arguments are the agent's, stored as sent and shown as hostile text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from botbottle.models import Bottle
from supervise import audit, events
from supervise.digests import digest
from supervise.kinds.mcp_tool_outcomes import GOOD_FOR
from supervise.models import Decision, Proposal
from supervise.proposals.submit import submit_proposal
from supervise.sanitize import without_nul_json


def unused(bottle: Bottle, server: str, tool: str, arguments: Mapping[str, Any]) -> str | None:
    """The proposal of exactly this call that was approved earlier and not used yet, where there is one."""
    payload = without_nul_json(_payload(server, tool, arguments))
    equal = Decision.objects.filter(
        bottle=bottle, proposal__ask_digest=digest([Proposal.Tool.MCP_TOOL, payload])
    )
    found = equal.filter(_unused()).order_by("created_at").values_list("proposal_id", flat=True).first()
    return None if found is None else str(found)


def ask(bottle: Bottle, server: str, tool: str, arguments: Mapping[str, Any]) -> str:
    """The proposal's id. Raises as `submit_proposal`."""
    words = f"The agent called the tool {tool[:200]} of the bottle's MCP server {server}."
    payload = _payload(server, tool, arguments)
    return str(submit_proposal(bottle, Proposal.Tool.MCP_TOOL, payload, words).proposal.pk)


def claim(proposal_id: UUID | str) -> dict[str, Any] | None:
    """Use the approval up, just before the call is made: what was shown and approved.

    None when there is no approval, or it was used already.
    """
    mine = Decision.objects.filter(_unused(), proposal_id=proposal_id)
    with transaction.atomic():
        if mine.update(applied=Decision.Applied.LIVE, live_at=timezone.now()) != 1:
            return None
        proposal = Proposal.objects.select_related("bottle").get(pk=proposal_id)
        slug, shown = proposal.bottle.slug, dict(proposal.payload)
        audit.append(
            "call made",
            actor_name=f"bottle {slug}",
            bottle_slug=slug,
            proposal_id=proposal.pk,
            details={"server": shown["server"], "tool": shown["tool"]},
        )
        events.announce("called", proposal, wake=False)
    return shown


def _payload(server: str, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {"server": server, "tool": tool, "arguments": dict(arguments)}


def _unused() -> Q:
    return Q(
        proposal__tool=Proposal.Tool.MCP_TOOL,
        proposal__status=Proposal.Status.APPROVED,
        applied=Decision.Applied.RECORDED,
        created_at__gt=timezone.now() - GOOD_FOR,
    )
