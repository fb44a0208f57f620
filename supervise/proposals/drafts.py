"""Drafts: requests refused lately that nobody asked for yet, as asks that an operator can approve at once.

Trust boundary: a record's host, path and method are an agent's; its ask is checked like that of a tool call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Count, Exists, Max, OuterRef, QuerySet
from django.utils import timezone

from botbottle.models import Bottle
from egress.models import RouteTableVersion, TrafficRecord
from egress.policy.table import Snapshot
from egress.tables import versions
from supervise.access.permissions import may_decide_for
from supervise.digests import ask_digest, digest
from supervise.errors import BadAsk, NotPermitted, StaleReview
from supervise.models import Approval, Decision, Proposal
from supervise.proposals import decisions
from supervise.proposals.kind import Kind, Review, kind_named, names
from supervise.proposals.precedents import is_allowed_by, refusals_of
from supervise.proposals.queries import newest_versions
from supervise.proposals.review import review
from supervise.proposals.submit import submit_proposal

LOOKED_AT = 2000  # newest refusals of one bottle
MOST_REQUESTS = 500  # of them that differ
MOST = 10  # drafts of one bottle


@dataclass(frozen=True, slots=True)
class _Refused:
    """One request, refused several times. The record is not a row: it has what the rows have in common."""

    record: TrafficRecord
    times: int


@dataclass(frozen=True, slots=True)
class Draft:
    """What one bottle wanted of one host. `payload` is the narrowest ask that lets all of it pass."""

    bottle: Bottle
    tool: str
    payload: dict[str, Any]
    times: int
    last: datetime

    @property
    def host(self) -> str:
        return str(self.payload["host"])

    @property
    def key(self) -> str:
        """Identifies its line on an open page, whatever the ask is."""
        return digest([self.bottle.slug, self.host, self.tool])[:16]

    @property
    def unfiled(self) -> Proposal:
        """The proposal it would be; its digest is that of the ask, since nothing is filed yet."""
        key = ask_digest(self.tool, self.payload)
        return Proposal(bottle=self.bottle, tool=self.tool, payload=self.payload, ask_digest=key, digest=key)


def drafts(*, bottle: str = "", host: str = "") -> list[Draft]:
    """The newest first. A bottle's drafts never push out those of another bottle.

    One small query for each bottle that was refused something; their number does not grow with the records.
    """
    living = Bottle.objects.exclude(state=Bottle.State.DELETED).filter(**{"slug": bottle} if bottle else {})
    refused = living.filter(Exists(_refusals(OuterRef("pk"), host)))
    found = [one for each in refused for one in _requests(each, _refusals(each, host)[:LOOKED_AT])]
    made = [draft for group in _grouped(_still_refused(found)) if (draft := _draft(group)) is not None]
    made.sort(key=lambda draft: draft.last, reverse=True)
    return list(_limit_per_bottle(made))


def _refusals(bottle: Bottle | OuterRef, host: str) -> QuerySet[TrafficRecord]:
    refused = refusals_of(bottle)
    return refused.filter(host=host) if host else refused


def _requests(bottle: Bottle, refusals: QuerySet[TrafficRecord]) -> Iterator[_Refused]:
    """Equal requests, grouped by the database: most of what a bottle is refused repeats."""
    rows = (
        TrafficRecord.objects.filter(pk__in=refusals.values("pk"))
        .values("method", "scheme", "host", "path", "reason", "ask")
        .annotate(times=Count("pk"), last=Max("at"), newest=Max("pk"))
        .order_by("-last", "-newest")[:MOST_REQUESTS]
    )
    for row in rows:
        same = {name: row[name] for name in ("method", "scheme", "host", "path", "reason", "ask")}
        yield _Refused(TrafficRecord(bottle=bottle, at=row["last"], **same), row["times"])


def _limit_per_bottle(found: Iterable[Draft]) -> Iterator[Draft]:
    shown = Counter[int]()
    for draft in found:
        shown[draft.bottle.pk] += 1
        if shown[draft.bottle.pk] <= MOST:
            yield draft


def review_draft(draft: Draft) -> Review:
    return review(draft.unfiled, versions.current(draft.bottle))


def approve(draft: Draft, *, actor: User, seen_digest: str, note: str = "") -> Decision | Approval:
    """File it for the bottle and grant it, in one transaction. Raises NotPermitted, StaleReview."""
    if not may_decide_for(actor, draft.bottle):
        raise NotPermitted(
            "You can view this, but only operators who may decide for this bottle can approve it."
        )
    with transaction.atomic():
        version = versions.lock(draft.bottle)
        if review(draft.unfiled, version).seen_digest != seen_digest:
            raise StaleReview("What it would do changed since you looked. Look again.")
        why = f"Filed by {actor.get_username()} after refused requests; the agent had not asked."
        filed = submit_proposal(draft.bottle, draft.tool, draft.payload, why, operator=actor.get_username())
        seen = review(filed.proposal, version).seen_digest
        return decisions.approve(filed.proposal.pk, actor=actor, seen_digest=seen, note=note)


def draft_of(bottle: Bottle, tool: str, payload: object) -> Draft:
    """From a form: checked as an agent's ask would be. Raises BadAsk."""
    kind = _kind_of_draft(tool)
    if kind is None or not isinstance(payload, dict):
        raise BadAsk("This is not an ask for a route or for the gate.")
    try:
        checked = kind.parse(bottle, kind.arguments_of(payload))
    except ValueError as error:  # the parsers' own refusals
        raise BadAsk(str(error)) from error
    return Draft(bottle, kind.name, checked, times=0, last=timezone.now())


def _kind_of_draft(name: object) -> Kind | None:
    kind = kind_named(name) if isinstance(name, str) and name in names() else None
    return kind if kind is not None and kind.can_be_drafted else None


def _still_refused(found: list[_Refused]) -> list[_Refused]:
    """Leave out what was asked for or opened meanwhile."""
    ids = {one.record.bottle_id for one in found}
    pending = Proposal.objects.filter(status=Proposal.Status.PENDING, bottle__in=ids)
    asked = set(pending.values_list("bottle", "payload__host"))
    tables = {bottle: _snapshot(version) for bottle, version in newest_versions(ids).items()}
    now = timezone.now()
    return [
        one
        for one in found
        if (one.record.bottle_id, one.record.host) not in asked
        and not is_allowed_by(tables[one.record.bottle_id], one.record, now)
    ]


def _snapshot(version: RouteTableVersion) -> Snapshot:
    return Snapshot(bottle="", version=version.version, table=version.table, written_at="")


def _grouped(found: list[_Refused]) -> Iterable[list[_Refused]]:
    groups: dict[tuple[int, str, str], list[_Refused]] = {}
    for refused in found:
        record = refused.record
        suggested = record.ask.get("tool", "") if isinstance(record.ask, dict) else ""
        groups.setdefault((record.bottle_id, record.host, str(suggested)), []).append(refused)
    return groups.values()


def _draft(refused: list[_Refused]) -> Draft | None:
    """One ask for all of a group; None when nothing in it can be asked for."""
    newest = refused[0].record
    kind = _kind_of_draft(newest.ask.get("tool")) if isinstance(newest.ask, dict) else None
    if kind is None:
        return None
    asks = [ask for one in refused if (ask := _ask_of(kind, one.record)) is not None]
    if not asks:
        return None
    times = sum(one.times for one in refused)
    return Draft(newest.bottle, kind.name, kind.union(asks), times, newest.at)


def _ask_of(kind: Kind, record: TrafficRecord) -> dict[str, Any] | None:
    arguments = record.ask.get("arguments") if isinstance(record.ask, dict) else None
    given = {key: value for key, value in arguments.items() if key != "justification"} if arguments else {}
    try:
        return kind.parse(record.bottle, given)
    except ValueError:
        return None
