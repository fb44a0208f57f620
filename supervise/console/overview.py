"""The bottles at a glance, for the live page. Changes nothing."""

from __future__ import annotations

from typing import Any

from django.db.models import Case, Count, Q, QuerySet, When

from botbottle.models import Bottle
from egress.models import Publication
from supervise.proposals import queries

TROUBLED = 5


def bottles_overview(*, limit: int = 50) -> dict[str, Any]:
    """Those that run or start first, then by name. Three queries, whatever their number."""
    living = Bottle.objects.exclude(state=Bottle.State.DELETED)
    active = Q(state__in=[Bottle.State.RUNNING, Bottle.State.STARTING])
    counts = living.aggregate(total=Count("pk"), running=Count("pk", filter=Q(state=Bottle.State.RUNNING)))
    shown = list(
        living.defer("dockerfile", "manifest")
        .annotate(pending=queries.pending_count(), is_idle=Case(When(active, then=0), default=1))
        .order_by("is_idle", "slug")[:limit]
    )
    troubled = list(_troubled()[: TROUBLED + 1])
    return {
        **counts,
        "shown": shown,
        "not_shown": counts["total"] - len(shown),
        "troubled": troubled[:TROUBLED],
        "more_troubled": len(troubled) > TROUBLED,
    }


def _troubled() -> QuerySet[Publication]:
    """Where the egress proxy says that something is wrong, shown above or not."""
    troubled = Publication.objects.exclude(bottle__state=Bottle.State.DELETED).exclude(proxy_problems=[])
    return troubled.select_related("bottle").only("proxy_problems", "bottle__slug").order_by("bottle__slug")
