"""Tool results: the outcome of a proposal, in words for the model and as data for its client. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from supervise.mcp.versions import NEWEST, shape_result

if TYPE_CHECKING:
    from supervise.proposals.outcomes import Outcome

Json = dict[str, Any]


def outcome_result(outcome: Outcome) -> Json:
    """The text says everything that the data says: clients before 2025-06-18 pass on only the text."""
    lines = [
        f"status: {outcome.status_for_agent}",
        f"notes: {outcome.notes or 'none'}",
        outcome.explanation,
        f"proposal_id: {outcome.proposal_id}",
    ]
    if outcome.granted is not None:
        lines.append(f"granted: {json.dumps(outcome.granted)}")
    if outcome.not_granted is not None:
        lines.append(f"not_granted: {json.dumps(outcome.not_granted)}")
    structured = {
        "status": outcome.status_for_agent,
        "proposal_id": outcome.proposal_id,
        "notes": outcome.notes,
        "granted": outcome.granted,
        "not_granted": outcome.not_granted,
        "live_version": outcome.live_version,
    }
    return {
        **text_result("\n".join(lines), is_error=outcome.status == "rejected"),
        "structuredContent": structured,
    }


def call_result(outcome: Outcome, *, version: str = NEWEST) -> Json:
    """The result of a tool call, as `version` defines it."""
    return shape_result("tools/call", outcome_result(outcome), version)


def routes_result(routes: Mapping[str, Any]) -> Json:
    return {**text_result(json.dumps(routes, indent=2), is_error=False), "structuredContent": dict(routes)}


def text_result(text: str, *, is_error: bool) -> Json:
    return {"content": [{"type": "text", "text": text}], "isError": is_error}
