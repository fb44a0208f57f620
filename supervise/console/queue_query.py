"""The read side of the queue: which proposals a filter shows, in which order, and the live header.

The number of queries does not depend on the number of cards. Filters are operators' text, hosts are agents'.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import urlencode
from uuid import UUID

from django.conf import settings
from django.db.models import BooleanField, Case, Exists, OuterRef, Q, QuerySet, Value, When
from django.db.models.fields.json import KT
from django.http import QueryDict
from django.utils import timezone

from botbottle.models import Bottle
from egress.models import Publication
from egress.tables import versions
from egress.traffic import proxy_health
from supervise import audit
from supervise.models import AuditEvent, Proposal
from supervise.proposals.kind import Review, names
from supervise.proposals.queries import call_patience, reviews_of
from supervise.proposals.risk import Level

PAGE = 50
MOST_PAGES = 1000
RISKS = {level.word: level for level in sorted(Level, reverse=True)}
TABLES_SHOWN = 3
ARRIVAL_ACTIONS = ("filed", "filed for the bottle", "snoozed", "woken")  # actions in the audit record


@dataclass(frozen=True, slots=True)
class Filter:
    """The filter in the address. Invalid values are ignored."""

    show: str = "pending"
    risk: str = ""
    tool: str = ""
    bottle: str = ""
    text: str = ""
    page: int = 1

    @classmethod
    def of_query(cls, query: QueryDict) -> Filter:
        page, kind = query.get("page", ""), query.get("tool", "")
        return cls(
            show="snoozed" if query.get("show") == "snoozed" else "pending",
            risk=query.get("risk", "") if query.get("risk") in RISKS else "",
            tool=kind if kind in names() else "",
            bottle=query.get("bottle", "").strip()[:40],
            text=query.get("q", "").replace("\0", "").strip()[:200],
            page=min(int(page), MOST_PAGES) if page.isascii() and page.isdigit() and page.strip("0") else 1,
        )

    @property
    def is_narrow(self) -> bool:
        return bool(self.risk or self.tool or self.bottle or self.text)

    def query(self, *, page: int | None = None) -> str:
        """The query string for this filter."""
        words = {"show": self.show if self.show != "pending" else "", "risk": self.risk, "tool": self.tool}
        words |= {"bottle": self.bottle, "q": self.text, "page": str(page) if page and page > 1 else ""}
        return urlencode({name: word for name, word in words.items() if word})

    @property
    def next_page(self) -> str:
        return self.query(page=self.page + 1)

    @property
    def previous_page(self) -> str:
        return self.query(page=self.page - 1)

    def proposals(self, now: datetime) -> QuerySet[Proposal]:
        found = Proposal.objects.filter(status=Proposal.Status.PENDING)
        asleep = Q(snoozed_until__gt=now)
        found = found.filter(asleep) if self.show == "snoozed" else found.exclude(asleep)
        if self.risk:
            found = found.filter(risk_when_filed=RISKS[self.risk])
        if self.tool:
            found = found.filter(tool=self.tool)
        if self.bottle:
            found = found.filter(bottle__slug=self.bottle)
        if self.text:
            found = found.annotate(host=KT("payload__host")).filter(
                Q(host__icontains=self.text)
                | Q(bottle__slug__icontains=self.text)
                | _beginning_with(self.text)
            )
        return found


@dataclass(frozen=True, slots=True)
class Since:
    """The position of a rendered page: the last audit number (commit order), and the time (for snoozes that
    end).
    """

    seq: int
    at: datetime

    @classmethod
    def of_text(cls, text: str) -> Since:
        """Parse what a page sent back. An invalid value means long ago: rather show too much as new than lose
        something.
        """
        seq, _, at = text.partition("@")
        try:
            if not (seq.isascii() and seq.isdigit() and len(seq) < 19):
                raise ValueError(seq)
            return cls(int(seq), datetime.fromtimestamp(float(at), UTC))
        except (ValueError, OverflowError, OSError):
            return cls(0, datetime.fromtimestamp(0, UTC))

    def __str__(self) -> str:
        return f"{self.seq}@{self.at.timestamp()}"


@dataclass(frozen=True, slots=True)
class QueuePage:
    """One page of cards, and how many precede and follow it."""

    reviews: list[Review]
    total: int
    before: int
    since: Since

    @property
    def after(self) -> int:
        return max(0, self.total - self.before - len(self.reviews))


def page_of(wanted: Filter) -> QueuePage:
    """The riskiest first; then those with a waiting call, the one that ends first; then the oldest."""
    since = Since(audit.newest_seq(), now := timezone.now())  # before the read: what arrives meanwhile is new
    found = wanted.proposals(now)
    before = (wanted.page - 1) * PAGE
    proposals = list(
        found.select_related("bottle")
        .prefetch_related("approvals__actor")
        .annotate(
            has_waiting_call=Case(
                When(asked_at__gt=now - call_patience(), then=Value(True)),
                default=Value(False),
                output_field=BooleanField(),
            )
        )
        .order_by("-risk_when_filed", "-has_waiting_call", "asked_at", "pk")[before : before + PAGE]
    )
    reviews = reviews_of(proposals, now=now)
    # The table may have changed since it was filed, and the risk with it. The sort keeps the rest in order.
    return QueuePage(sorted(reviews, key=lambda item: -item.risk.level), found.count(), before, since)


def arrived(wanted: Filter, since: Since, shown: Collection[UUID] = ()) -> int:
    """How many proposals arrived in this view since a page was rendered: submitted, moved there, or woken by
    time.

    What arrived while it was rendered may be `shown` already.
    """
    # One lookup per card, however old the page is.
    moved = AuditEvent.objects.filter(
        proposal_id=OuterRef("pk"), seq__gt=since.seq, action__in=ARRIVAL_ACTIONS
    )
    came = Exists(moved) & ~Q(pk__in=shown)
    if wanted.show == "pending":
        came |= Q(snoozed_until__gt=since.at)
    return wanted.proposals(timezone.now()).filter(came).count()


def proxy_state() -> dict[str, str]:
    """Proxy status for the header: label, summary and tooltip. Covers this home only; `proxy_news` covers
    others.
    """
    if not settings.EGRESS_PROXY:
        return {
            "label": "off",
            "summary": "no proxy here",
            "tooltip": "EGRESS_PROXY is off: tables are published only.",
        }
    publications = list(
        Publication.objects.exclude(bottle__state=Bottle.State.DELETED)
        .annotate(newest=versions.of_newest("version", bottle="bottle"))
        .order_by("-live_at", "bottle__slug")
        .values_list("bottle__slug", "live_version", "newest")[:200]
    )
    tables = [
        f"{slug} v{live}" if live == newest else f"{slug} v{live}, v{newest} not live"
        for slug, live, newest in publications
    ]
    more = f" +{len(tables) - TABLES_SHOWN}" if len(tables) > TABLES_SHOWN else ""
    summary = ", ".join(tables[:TABLES_SHOWN]) + more
    if absence := proxy_health.absence_here():
        return {"label": "away", "summary": "does not answer", "tooltip": absence.text}
    lags = any(live != newest for _, live, newest in publications)
    return {
        "label": "lags" if lags else "up",
        "summary": summary or "no tables yet",
        "tooltip": "\n".join(tables),
    }


def _beginning_with(text: str) -> Q:
    """Match the beginning of an id, if the text can be one."""
    digits = text.replace("-", "").lower()
    if not 8 <= len(digits) <= 32 or digits.strip("0123456789abcdef"):
        return Q(pk__in=[])
    return Q(pk__range=(UUID(digits.ljust(32, "0")), UUID(digits.ljust(32, "f"))))
