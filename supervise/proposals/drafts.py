"""Refused, and nobody asked yet: what bottles were refused lately, as asks an operator can approve at once.

Trust boundary: a record's host, path and method are an agent's; its ask is checked like that of a tool call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Count, Exists, Max, OuterRef, QuerySet
from django.utils import timezone

from botbottle.models import Bottle
from egress.models import RouteTableVersion, TrafficRecord
from egress.policy.asks import parse_egress_ask, parse_gate_ask
from egress.policy.errors import PolicyError
from egress.policy.paths import reduce_prefixes
from egress.policy.table import Snapshot
from egress.tables import versions
from supervise.access.permissions import may_decide_for
from supervise.digests import digest
from supervise.errors import BadAsk, NotPermitted, StaleReview
from supervise.models import Approval, Decision, Proposal
from supervise.proposals import decisions
from supervise.proposals.precedents import is_allowed_by
from supervise.proposals.queries import newest_versions
from supervise.proposals.review import Review, review
from supervise.proposals.submit import submit_proposal

LATELY = timedelta(hours=24)
LOOKED_AT = 2000  # newest refusals of one bottle
MOST_KINDS = 500  # of them that differ
MOST = 10  # drafts of one bottle
MOST_PATHS = 20  # of one draft: the newest ones
PARSERS = {Proposal.Tool.EGRESS: parse_egress_ask, Proposal.Tool.GATE: parse_gate_ask}


@dataclass(frozen=True, slots=True)
class _Refused:
    """The same request, however often. The record is not a row, and has what is said of all of them."""

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
        """Names its line on an open page, whatever is asked for there."""
        return digest([self.bottle.slug, self.host, self.tool])[:16]

    @property
    def unfiled(self) -> Proposal:
        """The proposal it would be; its digest is that of the ask, since nothing is filed yet."""
        ask_digest = digest([self.tool, self.payload])
        return Proposal(
            bottle=self.bottle, tool=self.tool, payload=self.payload, ask_digest=ask_digest, digest=ask_digest
        )


def drafts(*, bottle: str = "", host: str = "") -> list[Draft]:
    """The newest first. What is shown of a bottle depends on no other: none pushes out another's.

    One small query for each bottle that was refused something; their number does not grow with the records.
    """
    living = Bottle.objects.exclude(state=Bottle.State.DELETED).filter(**{"slug": bottle} if bottle else {})
    refused = living.filter(Exists(refusals_of(OuterRef("pk"), host)))
    found = [kind for each in refused for kind in _kinds(each, refusals_of(each, host)[:LOOKED_AT])]
    made = [draft for group in _grouped(_still_refused(found)) if (draft := _draft(group)) is not None]
    made.sort(key=lambda draft: draft.last, reverse=True)
    return list(_limit_per_bottle(made))


def refusals_of(bottle: Bottle | OuterRef, host: str) -> QuerySet[TrafficRecord]:
    """Those that asking can help, newest first. An index has just these."""
    refused = TrafficRecord.objects.filter(
        bottle=bottle, verdict="refused", ask__isnull=False, finding__isnull=True,
        at__gt=timezone.now() - LATELY,
    ).order_by("-at", "-pk")  # fmt: skip
    return refused.filter(host=host) if host else refused


def _kinds(bottle: Bottle, refusals: QuerySet[TrafficRecord]) -> Iterator[_Refused]:
    """Put together by the database: most of what a bottle is refused is the same again and again."""
    rows = (
        TrafficRecord.objects.filter(pk__in=refusals.values("pk"))
        .values("method", "scheme", "host", "path", "reason", "ask")
        .annotate(times=Count("pk"), last=Max("at"), newest=Max("pk"))
        .order_by("-last", "-newest")[:MOST_KINDS]
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
        raise NotPermitted("You may look, but only who may decide for this bottle approves for it.")
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
    if tool not in PARSERS or not isinstance(payload, dict):
        raise BadAsk("This is not an ask for a route or for the gate.")
    try:
        given = {key: value for key, value in payload.items() if tool != Proposal.Tool.GATE or key != "host"}
        checked = dict(PARSERS[Proposal.Tool(tool)](given))
    except PolicyError as error:
        raise BadAsk(str(error)) from error
    return Draft(bottle, tool, checked, times=0, last=timezone.now())


def _still_refused(found: list[_Refused]) -> list[_Refused]:
    """Without what was asked for or opened meanwhile."""
    ids = {kind.record.bottle_id for kind in found}
    pending = Proposal.objects.filter(status=Proposal.Status.PENDING, bottle__in=ids)
    asked = set(pending.values_list("bottle", "payload__host"))
    tables = {bottle: _snapshot(version) for bottle, version in newest_versions(ids).items()}
    now = timezone.now()
    return [
        kind
        for kind in found
        if (kind.record.bottle_id, kind.record.host) not in asked
        and not is_allowed_by(tables[kind.record.bottle_id], kind.record, now)
    ]


def _snapshot(version: RouteTableVersion) -> Snapshot:
    return Snapshot(bottle="", version=version.version, table=version.table, written_at="")


def _grouped(found: list[_Refused]) -> Iterable[list[_Refused]]:
    groups: dict[tuple[int, str, str], list[_Refused]] = {}
    for kind in found:
        record = kind.record
        tool = record.ask.get("tool", "") if isinstance(record.ask, dict) else ""
        groups.setdefault((record.bottle_id, record.host, str(tool)), []).append(kind)
    return groups.values()


def _draft(kinds: list[_Refused]) -> Draft | None:
    """One ask for all of a group; None when none of them can be asked for."""
    asks = [ask for kind in kinds if (ask := _ask_of(kind.record)) is not None]
    if not asks:
        return None
    newest, tool = kinds[0].record, str(kinds[0].record.ask["tool"])  # type: ignore[index]
    payload = dict(asks[0])
    if tool == Proposal.Tool.EGRESS:
        payload = {"host": payload["host"], **_union_of_asks(asks)}
    return Draft(newest.bottle, tool, payload, sum(kind.times for kind in kinds), newest.at)


def _ask_of(record: TrafficRecord) -> dict[str, Any] | None:
    ask = record.ask
    if not isinstance(ask, dict) or ask.get("tool") not in PARSERS:
        return None
    arguments = ask.get("arguments")
    given = {key: value for key, value in arguments.items() if key != "justification"} if arguments else {}
    try:
        return dict(PARSERS[Proposal.Tool(ask["tool"])](given))
    except PolicyError:
        return None


def _union_of_asks(asks: list[dict[str, Any]]) -> dict[str, Any]:
    """Paths and methods of all of them. Where one wants every path or method, so does the whole.

    A lease that was used up is asked for again as it was; what was never leased is asked for without one.
    """
    united: dict[str, Any] = {}
    paths = [ask.get("path_allowlist") for ask in asks]
    if all(paths):
        newest = list(dict.fromkeys(path for some in paths for path in some or ()))[:MOST_PATHS]
        united["path_allowlist"] = list(reduce_prefixes(newest))
    methods = [ask.get("methods") for ask in asks]
    if all(methods):
        united["methods"] = sorted({method for some in methods for method in some or ()})
    leases = [ask.get("lease") for ask in asks]
    if all(leases):
        united["lease"] = leases[0]
    return united
