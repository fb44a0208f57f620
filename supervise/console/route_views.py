"""The page of one route: what it allows, and the forms that change and withdraw it.

Trust boundary: readers are signed-in operators; the host and its paths were chosen by agents. Every change
goes through `supervise.bottles.route_actions`, which checks the right to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render

from botbottle.models import Bottle
from egress.models import RouteTableVersion
from egress.policy.routes import Route
from egress.tables import versions
from supervise.access.permissions import may_decide_for
from supervise.bottles import route_actions
from supervise.console import bottle_queries
from supervise.console.bottle_queries import RouteLine
from supervise.console.bottle_views import (
    add_result_message,
    bottle_form,
    changed_since_seen,
    get_bottle,
    number_of,
    status_of,
)
from supervise.console.cards import Change
from supervise.console.views import OperatorRequest, is_fragment, operator_page, page
from supervise.errors import BadAsk, StaleReview, SuperviseError
from supervise.kinds.route_edit import RouteEdit

PANELS = ("change", "withdraw")


@dataclass(frozen=True)
class RouteDetail:
    """The values of the page: one route, and the edit in its form."""

    line: RouteLine
    withdrawal: Change
    edit: RouteEdit
    edited: Change | None  # the preview of the edit, if it was requested
    edit_problem: str


@operator_page
def route(request: OperatorRequest, slug: str, host: str) -> HttpResponse:
    opened = request.GET.get("open", "")
    try:
        return _page(request, get_bottle(slug), host, opened=opened if opened in PANELS else "")
    except BadAsk:
        messages.info(request, f"The bottle {slug} has no such route, or no longer.")
        return redirect("bottle", slug)


@bottle_form
def change(request: OperatorRequest, slug: str, host: str) -> HttpResponse:
    edit, seen = RouteEdit.of_form(request.POST), _seen(request)
    try:
        fields = edit.changes(RouteEdit.of_route(_seen_route(slug, host, seen)))
        made = route_actions.change_route(slug, host, fields, actor=request.user, seen_version=seen)
    except SuperviseError as error:
        return _refused(request, slug, host, error, opened="change", edit=edit)
    add_result_message(request, made, f"The route of {host} is changed, as version {made.version}")
    return redirect("bottle", slug)


@bottle_form
def preview(request: OperatorRequest, slug: str, host: str) -> HttpResponse:
    """Preview the form's edit. Changes nothing; a POST because an edit can be long."""
    shown, edit = get_bottle(slug), RouteEdit.of_form(request.POST)
    if is_fragment(request):
        detail = _detail(shown, versions.current(shown), host, edit)
        return render(request, "supervise/proposal/_preview.html", {"detail": detail})
    return _page(request, shown, host, opened="change", edit=edit)


@bottle_form
def withdraw(request: OperatorRequest, slug: str, host: str) -> HttpResponse:
    try:
        made = route_actions.withdraw_route(slug, host, actor=request.user, seen_version=_seen(request))
    except SuperviseError as error:
        return _refused(request, slug, host, error, opened="withdraw")
    add_result_message(request, made, f"The route of {host} is withdrawn, as version {made.version}")
    return redirect("bottle", slug)


def _refused(
    request: OperatorRequest, slug: str, host: str, error: SuperviseError, **shown: Any
) -> HttpResponse:
    """The current route with the typed edit, or the bottle if the route is gone. Both show the reason."""
    bottle = get_bottle(slug)
    newest = versions.current(bottle)
    if newest.table.get(host) is None:
        raise error
    changed = None
    if isinstance(error, StaleReview):
        changed = changed_since_seen(request, bottle, newest.version)
    status, problem = status_of(error), error.message
    return _page(request, bottle, host, status=status, problem=problem, changed=changed, **shown)


def _page(
    request: OperatorRequest,
    bottle: Bottle,
    host: str,
    *,
    status: int = 200,
    edit: RouteEdit | None = None,
    **context: Any,
) -> HttpResponse:
    newest = versions.current(bottle)
    return page(
        request,
        "supervise/bottle/route.html",
        status=status,
        title=f"{bottle.slug}: {host}",
        bottle=bottle,
        newest=newest,
        detail=_detail(bottle, newest, host, edit),
        may_decide=may_decide_for(request.user, bottle),
        **context,
    )


def _detail(bottle: Bottle, newest: RouteTableVersion, host: str, edit: RouteEdit | None) -> RouteDetail:
    """Raises BadAsk if there is no such route."""
    withdrawal = Change(route_actions.preview(newest, host))
    (line,) = bottle_queries.route_lines(bottle, newest, host)
    start, edited, problem = RouteEdit.of_route(line.route), None, ""
    if edit is not None:
        try:
            fields = edit.changes(start)
            edited = Change(route_actions.preview(newest, host, fields)) if fields else None
        except BadAsk as error:
            problem = error.message
    return RouteDetail(line, withdrawal, edit or start, edited, problem)


def _seen_route(slug: str, host: str, version: int) -> Route:
    """The route in the version that the form was made from. Raises BadAsk."""
    seen = RouteTableVersion.objects.filter(bottle=get_bottle(slug), version=version).first()
    found = seen.table.get(host) if seen else None
    if found is None:
        raise BadAsk("The table that you saw has no such route. Reload the page.")
    return found


def _seen(request: OperatorRequest) -> int:
    return number_of(request.POST.get("seen_version"))
