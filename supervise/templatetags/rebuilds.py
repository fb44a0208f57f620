"""The rebuild that follows from a decision, wherever the decision is shown."""

from __future__ import annotations

from typing import Any

from django import template

from supervise.models import Decision, Proposal
from supervise.rebuild_pages import panel_of

register = template.Library()


@register.inclusion_tag("supervise/_rebuild.html", takes_context=True)
def rebuild_of(context: dict[str, Any], decision: Decision, proposal: Proposal) -> dict[str, Any]:
    if proposal.tool != Proposal.Tool.CAPABILITY:
        return {}
    request = context["request"]
    return {
        "panel": panel_of(decision, request.user),
        "request": request,
        "csrf_token": context.get("csrf_token"),
    }
