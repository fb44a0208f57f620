"""The read side: what agents and operators are shown. Changes nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from asgiref.sync import sync_to_async
from django.conf import settings
from django.core.exceptions import ValidationError
from django.db.models import Count, OuterRef, Q, QuerySet, Subquery
from django.db.models.fields.json import KT
from django.db.models.functions import Coalesce, Left
from django.utils import timezone

from botbottle.models import Bottle
from egress.models import Publication, RouteTableVersion
from egress.tables import publishing
from egress.tables import versions as store
from egress.tables.proxy_client import ProxyDown
from supervise.errors import BadAsk, NoSuchProposal
from supervise.models import Decision, Proposal
from supervise.proposals.kind import Review
from supervise.proposals.outcomes import Outcome, outcome_of
from supervise.proposals.review import find_facts, review
from supervise.proposals.risk import Level


def get_proposal(proposal_id: UUID | str, *, bottle: Bottle | None = None) -> Proposal:
    """One proposal, its bottle and decision. For a bottle, another bottle's does not exist."""
    proposals = Proposal.objects.select_related("bottle", "decision")
    if bottle is not None:
        proposals = proposals.filter(bottle=bottle)
    try:
        return proposals.get(pk=proposal_id)
    except (Proposal.DoesNotExist, ValidationError):
        raise NoSuchProposal(f"There is no proposal {str(proposal_id)[:64]!r} here.") from None


def find_proposal(text: str) -> Proposal:
    """By the id or its first 8 or more characters. Raises NoSuchProposal, or BadAsk when several fit."""
    digits = text.replace("-", "").lower()
    if not re.fullmatch("[0-9a-f]{8,32}", digits):
        raise NoSuchProposal(f"{text[:64]!a} is not a proposal's id, nor its first 8 characters or more.")
    span = UUID(digits.ljust(32, "0")), UUID(digits.ljust(32, "f"))
    found = list(Proposal.objects.filter(pk__range=span).values_list("pk", flat=True)[:2])
    if len(found) > 1:
        raise BadAsk(f"Several proposals begin with {text[:64]}. Give more of the id.")
    if not found:
        raise NoSuchProposal(f"There is no proposal {text[:64]}. 'proposals list --all' shows all there are.")
    return get_proposal(found[0])


def outcome(proposal_id: UUID | str, *, bottle: Bottle | None = None) -> Outcome:
    proposal = get_proposal(proposal_id, bottle=bottle)
    return outcome_of(proposal, decision_of(proposal))


aoutcome = sync_to_async(outcome, thread_sensitive=True)


def decision_of(proposal: Proposal) -> Decision | None:
    return getattr(proposal, "decision", None)


def live_routes(bottle: Bottle) -> dict[str, Any]:
    """The live table as agents may see it: what is reachable, never which secret is used.

    Asked of the proxy; `source` says whether it answered, or whether this is what it last acknowledged.
    """
    versions = RouteTableVersion.objects.filter(bottle=bottle)
    if settings.EGRESS_PROXY:
        try:
            live = publishing.proxy_client().routes(bottle.slug)
        except (ProxyDown, KeyError):
            pass  # it does not answer, or does not know the bottle yet
        else:
            version = versions.filter(version=live["version"]).first()
            return {
                **live,
                "source": "proxy",
                "gate_hosts": list(version.table.gate_hosts) if version else [],
            }
    live_version = Publication.objects.filter(bottle=bottle).values("live_version")
    version = versions.filter(version=Subquery(live_version)).first()
    if version is None:
        return {"version": 0, "source": "last known", "routes": [], "gate_hosts": []}
    table = version.table
    routes = [route.as_public_dict() for route in table.open_routes(timezone.now())]
    gate_hosts = list(table.gate_hosts)
    return {"version": version.version, "source": "last known", "routes": routes, "gate_hosts": gate_hosts}


def proposal_lines(*, status: str = "", tool: str = "", bottle: str = "") -> QuerySet[Proposal]:
    """Proposals for lists, newest first, without the long texts: their beginnings are enough to choose."""
    return (
        Proposal.objects.filter(**_wanted(status, tool, bottle))
        .select_related("bottle")
        .annotate(host=KT("payload__host"), justification_start=Left("justification", 500))
        .defer("payload", "justification", "bottle__dockerfile")
        .order_by("-created_at", "-pk")
    )


def review_of(proposal: Proposal, *, edited: dict[str, Any] | None = None) -> Review:
    """What is shown of a proposal now; with an operator's checked payload, what that would do instead.

    May take a while (`find_facts`): not for use in a transaction.
    """
    findings = find_facts([proposal], edited=edited)
    return review(proposal, store.current(proposal.bottle), edited=edited, findings=findings)


def reviews_of(proposals: Sequence[Proposal], *, now: datetime | None = None) -> list[Review]:
    """The same for many pending proposals. The number of queries does not depend on their number."""
    versions = newest_versions({proposal.bottle_id for proposal in proposals})
    known_hosts = store.hosts_reached() if versions else frozenset[str]()
    findings = find_facts(proposals)
    return [
        review(one, versions[one.bottle_id], now=now, known_hosts=known_hosts, findings=findings)
        for one in proposals
    ]


def history(*, status: str = "", tool: str = "", bottle: str = "") -> QuerySet[Decision]:
    """Decisions, newest first."""
    decided = Decision.objects.filter(**_wanted(status, tool, bottle))
    return decided.select_related("proposal__bottle", "table_version").order_by("-created_at", "-pk")


def _wanted(status: str, tool: str, bottle: str) -> dict[str, Any]:
    """Filters that an index serves. Ids of bottles are looked up first: no index covers a join."""
    wanted: dict[str, Any] = {"status": status, "tool": tool}
    if bottle:
        wanted["bottle__in"] = list(Bottle.objects.filter(slug=bottle).values_list("pk", flat=True))
    return {column: value for column, value in wanted.items() if value or column == "bottle__in"}


def call_patience() -> timedelta:
    """How long a tool call waits for a decision before it answers "pending"."""
    return timedelta(seconds=settings.SUPERVISE_RESPONSE_TIMEOUT_SECONDS)


def counts() -> dict[str, int]:
    """The numbers of the live header. Snoozed cards count apart."""
    now = timezone.now()
    pending = Q(status=Proposal.Status.PENDING)
    asleep = Q(snoozed_until__gt=now)
    waits = Q(asked_at__gt=now - call_patience())
    found: dict[str, int] = Proposal.objects.filter(pending).aggregate(
        pending=Count("pk", filter=~asleep),
        high=Count("pk", filter=~asleep & Q(risk_when_filed=Level.HIGH)),
        waiting=Count("bottle", filter=waits, distinct=True),
        snoozed=Count("pk", filter=asleep),
    )
    return {**found, "running": Bottle.objects.filter(state=Bottle.State.RUNNING).count()}


def pending_count() -> Coalesce:
    """Of each bottle, to annotate with: an index holds just these."""
    pending = Proposal.objects.filter(bottle=OuterRef("pk"), status=Proposal.Status.PENDING).order_by()
    counted = pending.values("bottle").annotate(count=Count("pk")).values("count")
    return Coalesce(Subquery(counted), 0)


def newest_versions(bottle_ids: set[int]) -> dict[int, RouteTableVersion]:
    bottles = Bottle.objects.filter(pk__in=bottle_ids).annotate(newest=store.of_newest("pk"))
    versions = RouteTableVersion.objects.filter(pk__in=bottles.values("newest")).order_by()
    return {version.bottle_id: version for version in versions}
