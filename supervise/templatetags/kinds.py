"""What the kind of a proposal says of a decision."""

from __future__ import annotations

from django import template

from supervise.models import Decision
from supervise.proposals.kind import kind_named

register = template.Library()


@register.filter
def applied_label(decision: Decision) -> dict[str, str]:
    """How far applying the decision has come: the style sheet's class, and the words, which need escaping."""
    style, text = kind_named(decision.tool).applied_label(decision)
    return {"style": style, "text": text}
