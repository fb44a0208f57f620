"""What an operator should know before deciding: earlier answers, and refused requests that this would allow.

Part of a proposal's page. A fixed number of queries, each bounded.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import OuterRef, Q, QuerySet
from django.utils import timezone

from botbottle.models import Bottle
from egress.models import TrafficRecord
from egress.policy.decide import PORTS, Request, decide
from egress.policy.hostnames import WILDCARD
from egress.policy.routes import Route
from egress.policy.table import RouteTable, Snapshot
from supervise.models import Decision, Proposal, StandingRefusal
from supervise.proposals.kind import Review, kind_of

MOST = 8
MOST_REFUSED = 12
LOOKED_AT = 500  # refused requests that are tried against the new table
ANSWERS_LOOKED_AT = 200  # the bottle's newest, and as many proposals of the same ask
REFUSED_AGE = timedelta(hours=24)
ANSWERS = (Proposal.Status.APPROVED, Proposal.Status.MODIFIED, Proposal.Status.REJECTED)


@dataclass(frozen=True, slots=True)
class Refused:
    """One kind of request that was refused, and how often."""

    method: str
    url: str
    reason: str
    times: int
    last: datetime


@dataclass(frozen=True, slots=True)
class Precedents:
    earlier: list[Decision]  # of this bottle, about the same target
    elsewhere: list[Decision]  # of other bottles, about the same ask
    would_allow: list[Refused]
    would_allow_more: int
    refusal: StandingRefusal | None


def precedents_of(proposal: Proposal, review: Review | None) -> Precedents:
    after = review.table_after if review is not None else None
    refused = [] if after is None else would_allow(proposal.bottle, proposal.payload["host"], after)
    return Precedents(
        earlier=list(_earlier(proposal)[:MOST]),
        elsewhere=list(_elsewhere(proposal)[:MOST]),
        would_allow=refused[:MOST_REFUSED],
        would_allow_more=max(0, len(refused) - MOST_REFUSED),
        refusal=StandingRefusal.objects.filter(decision__proposal=proposal, lifted_at=None).first(),
    )


def would_allow(bottle: Bottle, host: str, table: RouteTable) -> list[Refused]:
    """The bottle's recently refused requests to this host that the table would let pass."""
    records = refusals_of(bottle).filter(_about(host))
    after = Snapshot(bottle=bottle.slug, version=0, table=table, written_at="")
    now, found = timezone.now(), dict[tuple[str, str, str], Refused]()
    for record in records[:LOOKED_AT]:
        if not is_allowed_by(after, record, now):
            continue
        url = f"{record.scheme}://{record.host}{record.path}"
        key = (record.method, url, record.reason)
        earlier = found.get(key)
        found[key] = Refused(
            *key, (earlier.times if earlier else 0) + 1, earlier.last if earlier else record.at
        )
    return list(found.values())


def refusals_of(bottle: Bottle | OuterRef) -> QuerySet[TrafficRecord]:
    """The bottle's requests that the policy refused lately and that an ask can help, newest first.

    An index has just these.
    """
    return TrafficRecord.objects.filter(
        bottle=bottle, verdict="refused", ask__isnull=False, finding__isnull=True,
        at__gt=timezone.now() - REFUSED_AGE,
    ).order_by("-at", "-pk")  # fmt: skip


def is_allowed_by(snapshot: Snapshot, record: TrafficRecord, now: datetime) -> bool:
    """Whether the same request would pass with this table."""
    port = PORTS.get(record.scheme, 0)
    # A connection that never showed its request counts for the host alone.
    method = "GET" if record.method == "CONNECT" else record.method
    request = Request(record.scheme, record.host, port, method, record.path or "/")
    verdict = decide(request, snapshot, now=now)
    return verdict.allowed and not (verdict.route is not None and _used_up(verdict.route, record))


def _used_up(route: Route, record: TrafficRecord) -> bool:
    """Only the proxy counts uses: a lease that it found used up stays so until it is granted again."""
    lease = route.lease
    if record.reason != "used-up" or lease is None or lease.max_uses is None:
        return False
    return lease.granted_at is None or lease.granted_at <= record.at


def _about(host: str) -> Q:
    return Q(host__endswith=host[1:]) if host.startswith(WILDCARD) else Q(host=host)


def _decisions(keys: Iterable[int]) -> QuerySet[Decision]:
    """Find them by their keys alone: with a status in the filter, SQLite reads every row that has it."""
    return (
        Decision.objects.filter(pk__in=list(keys))
        .select_related("proposal__bottle")
        .defer(
            "final_payload",
            "granted",
            "not_granted",
            "proposal__justification",
            "proposal__bottle__dockerfile",
        )
        .order_by("-created_at", "-pk")
    )


def _earlier(proposal: Proposal) -> QuerySet[Decision]:
    newest = Decision.objects.filter(bottle=proposal.bottle_id).order_by("-created_at", "-pk")
    looked_at = newest.values_list("pk", "status")[:ANSWERS_LOOKED_AT]
    mine = _decisions(pk for pk, status in looked_at if status in ANSWERS).exclude(proposal=proposal)
    return mine.filter(kind_of(proposal).precedents(proposal.payload))


def _elsewhere(proposal: Proposal) -> QuerySet[Decision]:
    same = Proposal.objects.filter(ask_digest=proposal.ask_digest).order_by("-created_at")
    looked_at = same.values_list("decision", "status", "bottle")[:ANSWERS_LOOKED_AT]
    return _decisions(
        pk for pk, status, bottle in looked_at if status in ANSWERS and bottle != proposal.bottle_id
    )
