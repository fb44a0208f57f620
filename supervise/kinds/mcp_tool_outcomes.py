"""What an agent is told about an approved call of a managed server's tool."""

from __future__ import annotations

from datetime import timedelta

from django.utils import timezone

from supervise.models import Decision

GOOD_FOR = timedelta(hours=1)


def explain_call(decision: Decision) -> str:
    if decision.applied == Decision.Applied.LIVE:
        return "Approved, and the call was made. Call the tool again to ask for another one."
    if decision.created_at < timezone.now() - GOOD_FOR:
        return "Approved, but not called in time. Call the tool again to ask anew."
    return "Approved for one call: make exactly the same call again within an hour, and it is carried out."
