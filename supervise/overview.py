"""The bottles at a glance, for the live page. Changes nothing."""

from __future__ import annotations

from typing import Any

from django.db.models import Case, Count, Q, When

from botbottle.models import Bottle

from .models import Proposal


def bottles_overview(*, limit: int = 50) -> dict[str, Any]:
    """Those that run or start first, then by name. Two queries, whatever their number."""
    living = Bottle.objects.exclude(state=Bottle.State.DELETED)
    active = Q(state__in=[Bottle.State.RUNNING, Bottle.State.STARTING])
    counts = living.aggregate(total=Count("pk"), running=Count("pk", filter=Q(state=Bottle.State.RUNNING)))
    pending = Count("proposals", filter=Q(proposals__status=Proposal.Status.PENDING))
    shown = list(
        living.defer("dockerfile", "manifest")
        .annotate(pending=pending, is_idle=Case(When(active, then=0), default=1))
        .order_by("is_idle", "slug")[:limit]
    )
    return {**counts, "shown": shown, "not_shown": counts["total"] - len(shown)}
