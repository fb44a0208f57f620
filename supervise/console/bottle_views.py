"""The bottles' pages: what each may reach and what it tried; forms to roll back, rotate, start and stop.

Trust boundary: readers are signed-in operators; hosts and paths were chosen by agents. Every change goes
through `supervise.bottles.actions`, which checks the right to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import admin, messages
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.core.paginator import Page, Paginator
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.functional import cached_property
from django.views.decorators.debug import sensitive_variables
from django.views.decorators.http import require_POST

from botbottle.models import Bottle
from egress.models import Publication, RouteTableVersion
from egress.tables import homes
from egress.traffic import proxy_health
from supervise.access.permissions import may_decide_for, may_run_for, may_view
from supervise.bottles import actions, build_log
from supervise.bottles.records import NoSuchBottle
from supervise.console import bottle_queries, views
from supervise.console.bottle_queries import PERIODS, Period
from supervise.console.views import OperatorRequest, operator_page
from supervise.errors import NotPermitted, StaleReview, SuperviseError
from supervise.proposals.kind import ChangesSince

BOTTLES_PAGE = 50
VERSIONS_PAGE = 20
START_LOG = 20_000  # characters
_STATUS_OF: dict[type[SuperviseError], int] = {NotPermitted: 403, StaleReview: 409}


def bottle_form(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponseBase]:
    """The target of a form: POST only. A refusal shows the current bottle and the reason."""

    def guarded(request: Any, slug: str, **more: str) -> HttpResponse:
        if not may_view(request.user):
            raise PermissionDenied("Seeing bottles needs the permission 'view_proposal'.")
        try:
            return view(request, slug, **more)
        except NoSuchBottle as error:
            raise Http404(error.message) from error
        except SuperviseError as error:
            status = status_of(error)
            is_stale = isinstance(error, StaleReview)
            return _bottle_page(
                request, get_bottle(slug), status=status, problem=error.message, is_stale=is_stale
            )

    signed_in = admin.site.admin_view(guarded)

    @require_POST
    def post(request: HttpRequest, slug: str, **more: str) -> HttpResponseBase:
        if not admin.site.has_permission(request):
            return redirect_to_login(reverse("bottle", args=[slug]), reverse("admin:login"))
        return signed_in(request, slug, **more)

    return post


@operator_page
def bottles(request: OperatorRequest) -> HttpResponse:
    page = Paginator(bottle_queries.living_bottles(), BOTTLES_PAGE).get_page(request.GET.get("page"))
    plots = bottle_queries.plots_of(page, PERIODS["day"])
    lines = [(bottle, plots[bottle.pk]) for bottle in page]
    return views.page(
        request,
        "supervise/bottle/list.html",
        title="Bottles",
        page=page,
        lines=lines,
        losses=proxy_health.losses(),
    )


@operator_page
def strip(request: OperatorRequest) -> HttpResponse:
    """The overview of bottles by itself, which an open queue page fetches after an event."""
    overview = bottle_queries.bottles_overview()
    return render(request, "supervise/queue/_bottles_strip.html", {"bottles": overview})


@operator_page
def bottle(request: OperatorRequest, slug: str) -> HttpResponse:
    return _bottle_page(request, get_bottle(slug))


@bottle_form
def rollback(request: OperatorRequest, slug: str) -> HttpResponse:
    version, seen = (number_of(request.POST.get(name)) for name in ("version", "seen_version"))
    made = actions.rollback(slug, version, actor=request.user, seen_version=seen)
    add_result_message(request, made, f"The table is back at version {version}, as version {made.version}")
    return redirect("bottle", slug)


@bottle_form
@sensitive_variables("made")
def rotate(request: OperatorRequest, slug: str) -> HttpResponse:
    """Show the new token in the response itself: it is not stored, and a lost one must be replaced."""
    made = actions.rotate_token(slug, actor=request.user)
    return _bottle_page(request, get_bottle(slug), token=made.token)


@bottle_form
def start(request: OperatorRequest, slug: str) -> HttpResponse:
    actions.begin("start", slug, actor=request.user)
    messages.success(request, f"The bottle {slug} is being started. Reload to see how it went.")
    return redirect("bottle", slug)


@bottle_form
def stop(request: OperatorRequest, slug: str) -> HttpResponse:
    actions.begin("stop", slug, actor=request.user)
    messages.success(request, f"The bottle {slug} is being stopped. Reload to see how it went.")
    return redirect("bottle", slug)


def add_result_message(request: OperatorRequest, made: RouteTableVersion, change: str) -> None:
    """Add a message about the change, and whether the proxy serves it by now."""
    live = Publication.objects.get(bottle=made.bottle_id)
    if live.live_version >= made.version:
        messages.success(request, f"{change}, and live.")
    else:
        reason = live.problem or "the proxy has not answered yet"
        messages.warning(request, f"{change}, but not live yet: {reason}. It is retried.")


def status_of(error: SuperviseError) -> int:
    return _STATUS_OF.get(type(error), 400)


def _bottle_page(
    request: OperatorRequest,
    shown: Bottle,
    *,
    status: int = 200,
    problem: str = "",
    is_stale: bool = False,
    token: str = "",
) -> HttpResponse:
    versions = RouteTableVersion.objects.filter(bottle=shown)
    newest = versions.latest("version")
    chosen = request.GET.get("period", "")
    period = PERIODS.get(chosen, PERIODS["day"])
    return views.page(
        request,
        "supervise/bottle/bottle.html",
        status=status,
        title=shown.slug,
        bottle=shown,
        problem=problem,
        changed=changed_since_seen(request, shown, newest.version) if is_stale else None,
        token=token,
        newest=newest,
        routes=bottle_queries.route_lines(shown, newest),
        gate_only=[host for host in newest.table.gate_hosts if newest.table.get(host) is None],
        versions=_VersionPages(versions, newest.version).get_page(request.GET.get("page")),
        comparison=_comparison(request, shown),
        start_log=build_log.end(homes.bottle_directory(shown) / build_log.STARTING, START_LOG).text,
        may_decide=may_decide_for(request.user, shown),
        may_run=may_run_for(request.user, shown),
        **_traffic(shown, period),
    )


class _VersionPages(Paginator):  # type: ignore[type-arg]
    """A bottle's versions, newest first. Their numbers have no gaps, so none is counted or skipped."""

    object_list: QuerySet[RouteTableVersion]

    def __init__(self, versions: QuerySet[RouteTableVersion], newest: int) -> None:
        super().__init__(versions.defer("content").order_by("-version"), VERSIONS_PAGE)
        self._newest = newest

    @cached_property
    def count(self) -> int:
        oldest = self.object_list.order_by("version").values_list("version", flat=True)[0]
        return self._newest - oldest + 1

    def page(self, number: int | str) -> Page[RouteTableVersion]:
        number = self.validate_number(number)
        last = self._newest - (number - 1) * self.per_page
        shown = self.object_list.filter(version__lte=last, version__gt=last - self.per_page)
        return Page(shown, number, self)


def _traffic(shown: Bottle, period: Period) -> dict[str, Any]:
    drawn = bottle_queries.plots_of([shown], period)[shown.pk]
    since = bottle_queries.since(period)
    return {
        "plot": drawn,
        "period": period,
        "periods": PERIODS,
        "refused_hosts": bottle_queries.refused_hosts(shown, since),
    }


def changed_since_seen(request: OperatorRequest, shown: Bottle, newest: int) -> ChangesSince | None:
    """The changes since the version that the form was made from."""
    found = bottle_queries.compare(shown, number_of(request.POST.get("seen_version")), newest)
    return ChangesSince((), found.diff) if found and found.changes else None


def _comparison(request: OperatorRequest, shown: Bottle) -> bottle_queries.Comparison | None:
    if "from" not in request.GET:
        return None
    one, other = (number_of(request.GET.get(name)) for name in ("from", "to"))
    found = bottle_queries.compare(shown, one, other)
    if found is None:
        messages.error(request, "This bottle does not have both versions.")
    return found


def number_of(text: str | None) -> int:
    """The number, or 0, which no version has, for any other text."""
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 10 else 0


def get_bottle(slug: str) -> Bottle:
    found = bottle_queries.living_bottles().filter(slug=slug).first()
    if found is None:
        raise Http404(f"There is no bottle {slug!r}.")
    return found
