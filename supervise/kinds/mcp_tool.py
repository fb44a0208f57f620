"""`mcp-tool`: a call of an MCP server's tool that an operator decides. One approval is good for one call.

Agents do not call this kind by its name: they call the server's tool, and the call becomes a proposal.

Trust boundary: arguments are the agent's, stored as sent and shown as hostile text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from botbottle.core.sanitize import without_nul_json
from botbottle.models import Bottle
from supervise import audit, events
from supervise.digests import ask_digest
from supervise.models import Decision, Proposal
from supervise.proposals.kind import Applied, Context, Json, Kind, Preview
from supervise.proposals.risk import Level, Risk
from supervise.proposals.submit import submit_proposal

GOOD_FOR = timedelta(hours=1)
MOST_WITH_LINES = 64 * 1024  # characters of a call's arguments


class McpTool(Kind):
    name = "mcp-tool"
    noun = "an MCP tool"
    shown_keys = ("server", "tool", "arguments")
    diff_name = "Arguments"
    why_not_editable = "There is nothing to modify: one call is made, or it is not. Approve or reject."

    def target(self, payload: Json) -> str:
        return f"{payload['tool']} of {payload['server']}"

    def summary(self, payload: Json) -> str:
        return f"call {self.target(payload)} with {json.dumps(payload['arguments'])}"

    def preview(self, proposal: Proposal, payload: Json, context: Context, *, by_operator: bool) -> Preview:
        called = f"the tool {payload['tool']} of the server {payload['server']}"
        reason = f"calls {self.target(payload)}, which the manifest lets nobody call unasked"
        return Preview(
            before="",
            after=_readable(payload["arguments"]),
            effects=(f"{called} is called once, with these arguments",),
            risk=Risk.of([(Level.MEDIUM, reason)]),
        )

    def precedents(self, payload: Json) -> Q:
        return Q(proposal__payload__server=payload["server"], proposal__payload__tool=payload["tool"])

    def explain(self, decision: Decision) -> str:
        if decision.applied == Applied.LIVE:
            return "Approved, and the call was made. Call the tool again to ask for another one."
        if decision.created_at < timezone.now() - GOOD_FOR:
            return "Approved, but not called in time. Call the tool again to ask once more."
        return (
            "Approved for one call: make exactly the same call again within an hour, and it is carried out."
        )

    def applied_words(self, applied: str, live_version: int | None, problem: str) -> str:
        match applied:
            case Applied.NOTHING:
                return ""
            case Applied.LIVE:
                return "and the call was made"
        return "and not called yet"

    def confirmation(self, decision: Decision) -> str:
        match decision.applied:
            case Applied.LIVE:
                return ", and called."
            case Applied.RECORDED:
                return ". The agent may make this call once, within an hour."
        return super().confirmation(decision)

    def applied_label(self, decision: Decision) -> tuple[str, str]:
        match decision.applied:
            case Applied.LIVE:
                return "live", "called"
            case Applied.RECORDED:
                return "", "good for one call within an hour"
        return super().applied_label(decision)


def unused(bottle: Bottle, server: str, tool: str, arguments: Mapping[str, Any]) -> str | None:
    """The proposal of exactly this call that was approved earlier and not used yet, if there is one."""
    payload = without_nul_json(_payload(server, tool, arguments))
    equal = Decision.objects.filter(bottle=bottle, proposal__ask_digest=ask_digest(McpTool.name, payload))
    found = equal.filter(_unused()).order_by("created_at").values_list("proposal_id", flat=True).first()
    return None if found is None else str(found)


def ask(bottle: Bottle, server: str, tool: str, arguments: Mapping[str, Any]) -> str:
    """Submit the call as a proposal and return its id. Raises as `submit_proposal`."""
    words = f"The agent called the tool {tool[:200]} of the bottle's MCP server {server}."
    payload = _payload(server, tool, arguments)
    return str(submit_proposal(bottle, McpTool.name, payload, words).proposal.pk)


def claim(proposal_id: UUID | str) -> dict[str, Any] | None:
    """Use the approval up, just before the call is made, and return what was shown and approved.

    None when there is no approval, or when it was used already.
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


def _readable(arguments: Json) -> str:
    """Indented, unless that takes long: an open page asks for its cards all the time."""
    text = json.dumps(arguments, ensure_ascii=False)
    return text if len(text) > MOST_WITH_LINES else json.dumps(arguments, indent=2, ensure_ascii=False)


def _unused() -> Q:
    return Q(
        proposal__tool=McpTool.name,
        proposal__status=Proposal.Status.APPROVED,
        applied=Decision.Applied.RECORDED,
        created_at__gt=timezone.now() - GOOD_FOR,
    )
