"""The rebuild of a decision, wherever the decision is shown."""

from __future__ import annotations

from typing import Any

from django import template

from supervise.console.rebuild_views import panel_of
from supervise.models import Decision, Proposal
from supervise.proposals.kind import kind_of

register = template.Library()


@register.inclusion_tag("supervise/rebuild/_rebuild.html", takes_context=True)
def rebuild_of(context: dict[str, Any], decision: Decision, proposal: Proposal) -> dict[str, Any]:
    if not kind_of(proposal).builds_image:
        return {}
    request = context["request"]
    return {
        "panel": panel_of(decision, request.user),
        "request": request,
        "csrf_token": context.get("csrf_token"),
    }
