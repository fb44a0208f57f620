"""The read side of the bottles' pages. The number of queries does not depend on what is shown."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Case, Max, Q, QuerySet, When
from django.db.models import Count as CountOf
from django.db.models.functions import TruncDay, TruncHour
from django.utils import timezone

from botbottle.models import Bottle
from egress.models import Publication, RouteTableVersion, TrafficRecord
from egress.policy.describe import operator_settings, table_text
from egress.policy.merge import RouteChange, diff_tables
from egress.policy.routes import Route
from egress.tables import versions
from supervise.console.traffic_plot import Count, Plot, plot, slots
from supervise.diffs import Diff, line_diff
from supervise.proposals import queries

TOP_HOSTS = 10
MOST_ROWS = 2000
TROUBLED = 5  # bottles with problems that the overview names


@dataclass(frozen=True, slots=True)
class Period:
    """A period of the past, and how a plot divides it."""

    name: str
    step: timedelta
    count: int
    form: str
    trunc: type[TruncHour] | type[TruncDay]


PERIODS = {
    "day": Period("24 hours", timedelta(hours=1), 24, "%m-%d %H:00", TruncHour),
    "fortnight": Period("14 days", timedelta(days=1), 14, "%Y-%m-%d", TruncDay),
}


@dataclass(frozen=True, slots=True)
class RouteLine:
    route: Route
    is_over: bool
    last_use: datetime | None
    uses: int  # while records are kept

    @property
    def settings(self) -> str:
        """The settings that only operators change, if they differ from the defaults."""
        return operator_settings(self.route).removeprefix("; ")


@dataclass(frozen=True, slots=True)
class Comparison:
    before: RouteTableVersion
    after: RouteTableVersion
    changes: tuple[RouteChange, ...]
    diff: Diff


def living_bottles() -> QuerySet[Bottle]:
    return (
        Bottle.objects.exclude(state=Bottle.State.DELETED)
        .select_related("publication")
        .prefetch_related("assignments__operator")
        .defer("dockerfile", "manifest")
        .annotate(pending=queries.pending_count(), newest=versions.of_newest("version"))
        .order_by("slug")
    )


def since(period: Period) -> datetime:
    return slots(timezone.now(), period.step, period.count)[0]


def plots_of(bottles: Iterable[Bottle], period: Period) -> dict[int, Plot]:
    """One plot for each bottle, by one query."""
    ids = [bottle.pk for bottle in bottles]
    times = slots(timezone.now(), period.step, period.count)
    rows = (
        TrafficRecord.objects.filter(bottle__in=ids, at__gte=times[0])
        .annotate(slot=period.trunc("at"))
        .order_by()
        .values("bottle", "slot")
        .annotate(
            allowed=CountOf("pk", filter=Q(verdict="allowed")),
            refused=CountOf("pk", filter=Q(verdict="refused")),
        )
    )
    counts: dict[int, dict[datetime, Count]] = defaultdict(dict)
    for row in rows:
        counts[row["bottle"]][row["slot"]] = Count(row["allowed"], row["refused"])
    return {pk: plot(times, counts[pk], form=period.form) for pk in ids}


def route_lines(bottle: Bottle, version: RouteTableVersion, host: str = "") -> list[RouteLine]:
    """The lines of all routes, or of one host's."""
    records = TrafficRecord.objects.filter(bottle=bottle, verdict="allowed")
    used = {
        row["route"]: row
        for row in (records.filter(route=host) if host else records)
        .order_by()
        .values("route")
        .annotate(last=Max("at"), uses=CountOf("pk"))
    }
    now = timezone.now()
    nothing: dict[str, Any] = {"last": None, "uses": 0}
    return [
        RouteLine(
            route, route.is_over(now), *(used.get(route.host, nothing)[key] for key in ("last", "uses"))
        )
        for route in version.table.routes
        if host in ("", route.host)
    ]


def refused_hosts(bottle: Bottle, since: datetime) -> list[dict[str, Any]]:
    """The hosts that were refused most, with the reason and the last time."""
    refused = TrafficRecord.objects.filter(bottle=bottle, verdict="refused", at__gte=since)
    rows = refused.order_by().values("host", "reason").annotate(times=CountOf("pk"), last=Max("at"))
    return [dict(row) for row in rows.order_by("-times", "host")[:TOP_HOSTS]]


def compare(bottle: Bottle, one: int, other: int) -> Comparison | None:
    """Compare two versions. None if the bottle does not have both."""
    found = {
        version.version: version
        for version in RouteTableVersion.objects.filter(bottle=bottle, version__in=[one, other])
    }
    if one not in found or other not in found:
        return None
    before, after = found[one], found[other]
    return Comparison(
        before,
        after,
        diff_tables(before.table, after.table),
        line_diff(table_text(before.table), table_text(after.table), most_rows=MOST_ROWS),
    )


def bottles_overview(*, limit: int = 50) -> dict[str, Any]:
    """The overview for the queue: active bottles first, then by name. Three queries for any number."""
    living = Bottle.objects.exclude(state=Bottle.State.DELETED)
    active = Q(state__in=[Bottle.State.RUNNING, Bottle.State.STARTING])
    counts = living.aggregate(
        total=CountOf("pk"), running=CountOf("pk", filter=Q(state=Bottle.State.RUNNING))
    )
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
    """The publications for which the egress proxy reports a problem, shown above or not."""
    troubled = Publication.objects.exclude(bottle__state=Bottle.State.DELETED).exclude(proxy_problems=[])
    return troubled.select_related("bottle").only("proxy_problems", "bottle__slug").order_by("bottle__slug")
