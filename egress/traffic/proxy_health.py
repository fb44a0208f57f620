"""Whether the egress proxy answers and what is wrong with it, for operators; also of other homes."""

from __future__ import annotations

from datetime import timedelta

from django.conf import settings
from django.db.models import Exists, Max, OuterRef, QuerySet, Sum
from django.db.models.functions import Now
from django.utils import timezone

from botbottle.models import Bottle
from egress.models import ProxyEvent, RecordCursor
from egress.tables import homes, publishing
from egress.tables.proxy_client import EgressProcess

NAMED = 5
NEWS_AGE = timedelta(hours=1)
SILENCE = timedelta(minutes=1)  # idle processes are asked every few seconds
Kind = ProxyEvent.Kind


def proxy_news() -> ProxyEvent | None:
    """The latest event of the egress proxy that operators should still see; an absence comes first.

    A bottle's problem is not among them: it is shown with the bottle for as long as it lasts. Events that a
    flood of requests causes come last, so that nobody hides other news with a flood.
    """
    if not (settings.EGRESS_PROXY or homes.other_homes()):
        return None
    fresh = ProxyEvent.objects.filter(at__gt=timezone.now() - NEWS_AGE)
    return (
        absence()
        or fresh.filter(kind__in=(Kind.BACK, Kind.RESTARTED)).first()
        or fresh.filter(kind__in=(Kind.DROPPED, Kind.STRANGERS)).first()
    )


def absence() -> ProxyEvent | None:
    """An absence in this home or, without one, in another home that has bottles in this database."""
    if here := absence_here():
        return here
    others = homes.other_homes()
    return (absences().filter(home__in=others).first() or _silence(others)) if others else None


def absence_here() -> ProxyEvent | None:
    """The latest absence of one of this home's egress processes; removed processes do not count."""
    return absences().filter(home=homes.home_id(), process__lt=_wanted()).first()


def absences() -> QuerySet[ProxyEvent]:
    """Absences that have not ended, from the database: an earlier reader may have recorded them."""
    later = ProxyEvent.objects.filter(
        home=OuterRef("home"), process=OuterRef("process"), pk__gt=OuterRef("pk"),
        kind__in=(Kind.AWAY, Kind.BACK, Kind.RESTARTED),
    )  # fmt: skip
    return ProxyEvent.objects.filter(~Exists(later), kind=Kind.AWAY)


def _silence(other_homes: set[str]) -> ProxyEvent | None:
    """An unsaved event for a home that has been silent for a while, unless it wants no proxy.

    There is no row for it: the process that would write one is gone. Only the database's clock counts,
    because machines may differ.
    """
    last = RecordCursor.objects.filter(home__in=other_homes).values("home").annotate(heard=Max("heard_at"))
    silent = last.filter(heard__lt=Now() - SILENCE).order_by("-heard").first()
    if silent is None:
        return None
    text = (
        f"home {silent['home'][:8]}: its web process, or the whole machine, does not answer. What is decided "
        "for its bottles waits until it is back."
    )
    return ProxyEvent(kind=Kind.AWAY, at=silent["heard"], text=text, home=silent["home"])


def losses() -> str:
    """Sums that no list shows: records lost before they were read, and requests without a valid token."""
    sums = RecordCursor.objects.aggregate(lost=Sum("lost", default=0), strangers=Sum("strangers", default=0))
    sentences = {
        "lost": "Records of requests that were ever lost before they could be read",
        "strangers": "Requests that ever came to the proxy's TCP port with no or a wrong token",
    }
    return " ".join(f"{text}: {sums[name]:,}." for name, text in sentences.items() if sums[name])


def forget_unwanted() -> None:
    """End the absences of egress processes that this home no longer has: other homes cannot know that."""
    for event in absences().filter(home=homes.home_id(), process__gte=_wanted()):
        record_event(Kind.BACK, f"egress process {event.process + 1} is no longer wanted", event.process)
    heard = RecordCursor.objects.filter(home=homes.home_id(), process__gte=_wanted(), heard_at__isnull=False)
    if heard.exists():  # on SQLite, even a write that changes nothing locks the database
        heard.update(heard_at=None)
    if not settings.EGRESS_PROXY:
        publishing.record_problems({}, lambda _: True)


def _wanted() -> int:
    """How many egress processes this home should have."""
    return publishing.proxy_client().count if settings.EGRESS_PROXY else 0


def record_absence(process: EgressProcess, problem: str) -> None:
    publishing.record_problems({}, process.serves)  # it cannot say whether they last
    record_event(Kind.AWAY, f"{problem}. {_consequence(process)}", process.number)


def _consequence(process: EgressProcess) -> str:
    if process.count == 1:
        return "Bottles reach nothing while it is away."
    living = Bottle.objects.exclude(state=Bottle.State.DELETED).filter(publication__home=homes.home_id())
    served = [slug for slug in living.order_by("slug").values_list("slug", flat=True) if process.serves(slug)]
    if not served:
        return "No bottle is with it."
    more = f" and {len(served) - NAMED} more" if len(served) > NAMED else ""
    return f"Bottles that are with it reach nothing: {', '.join(served[:NAMED])}{more}. All others do."


def record_return(process: EgressProcess, *, away: bool, last_boot: str) -> None:
    """Handle what may be a new run of the egress process, which may serve older tables than the last one.

    A restart is recorded only if the last run ended by itself.
    """
    live = {slug: state["version"] for slug, state in process.status()["bottles"].items()}
    publishing.lower_live_versions(live, process.serves)
    if away:
        record_event(Kind.BACK, f"{process.label} answers again", process.number)
    elif last_boot and not process.was_stopped(last_boot):
        record_event(Kind.RESTARTED, f"{process.label} was restarted", process.number)


def record_event(kind: str, text: str, process: int = 0, *, event: ProxyEvent | None = None) -> ProxyEvent:
    """Save a new event, or an existing one with another text."""
    home = homes.home_id()
    event = event or ProxyEvent(kind=kind, home=home, process=process)
    event.text = (f"home {home[:8]}: {text}" if homes.other_homes() else text)[:300]
    event.save()
    return event
