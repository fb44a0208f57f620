"""The read-only pages: the live queue, one proposal, standing refusals and the history.

Trust boundary: readers are signed-in operators; what they read was written by agents. The forms that decide
are in `supervise.console.decision_forms`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any
from uuid import UUID

from django.contrib import admin
from django.contrib.auth.models import User
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe

from egress.traffic import proxy_health
from supervise import keyset
from supervise.access.permissions import bottles_assigned_to_others, may_decide, may_view
from supervise.console.bottle_queries import bottles_overview
from supervise.console.cards import Card, card_of, detail_of, state_of, summary_of, target_of
from supervise.console.queue_query import PAGE, RISKS, Filter, QueuePage, Since, arrived, page_of, proxy_state
from supervise.console.shared_reads import shared
from supervise.errors import NoSuchProposal
from supervise.models import Proposal
from supervise.proposals import queries
from supervise.proposals import standing_refusals as refusals
from supervise.proposals.drafts import Draft, drafts
from supervise.proposals.kind import Edit, Review, names

HISTORY_PAGE = 50
PANELS = ("approve", "modify", "reject", "snooze")
View = Callable[..., HttpResponseBase]


class OperatorRequest(HttpRequest):
    """A request after `admin_view`, which always has a signed-in user."""

    user: User


def operator_page(view: View) -> View:
    """A read-only page, for staff who may view proposals. Others sign in first, or get 403."""
    return require_safe(admin.site.admin_view(_for_watchers(view)))


def operator_form(view: View) -> View:
    """The target of a form: POST only. After signing in, the user returns to the proposal or the queue, not
    here.
    """
    guarded = admin.site.admin_view(_for_watchers(view))

    @require_POST
    def post(request: HttpRequest, **kwargs: Any) -> HttpResponseBase:
        if not admin.site.has_permission(request):
            known = {"proposal_id": kwargs["proposal_id"]} if "proposal_id" in kwargs else None
            back = reverse("proposal", kwargs=known) if known else reverse("queue")
            return redirect_to_login(back, reverse("admin:login"))
        return guarded(request, **kwargs)

    return post


def _for_watchers(view: View) -> View:
    @wraps(view)
    def watched(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if not may_view(request.user):
            raise PermissionDenied("Viewing proposals needs the permission 'view_proposal'.")
        return view(request, *args, **kwargs)

    return watched


def page(request: OperatorRequest, template: str, *, status: int = 200, **context: Any) -> HttpResponse:
    context = {**admin.site.each_context(request), "is_nav_sidebar_enabled": False, **context}
    return render(request, template, context, status=status)


def get_proposal(proposal_id: UUID) -> Proposal:
    try:
        return queries.get_proposal(proposal_id)
    except NoSuchProposal as error:
        raise Http404(error.message) from error


def is_fragment(request: HttpRequest) -> bool:
    """Whether the page's script requests only the part that it will insert."""
    return request.headers.get("X-Fragment") == "1"


def draft_lines() -> list[tuple[Draft, str]]:
    return shared.get("drafts", lambda: [(draft, summary_of(draft.unfiled)) for draft in drafts()])


@operator_page
def queue(request: OperatorRequest) -> HttpResponse:
    wanted = Filter.of_query(request.GET)
    return page(
        request,
        "supervise/queue/queue.html",
        title="Queue",
        counts=queries.counts(),
        proxy=proxy_state(),
        proxy_news=proxy_health.proxy_news(),
        bottles=bottles_overview(),
        drafts=draft_lines(),
        tools=names(),
        risks=list(RISKS),
        may_decide=may_decide(request.user),
        **_list_context(request, wanted),
    )


@operator_page
def queue_list(request: OperatorRequest) -> HttpResponse:
    """The cards of one view as a fragment, for an open page to show new ones."""
    return render(request, "supervise/queue/_list.html", _list_context(request, Filter.of_query(request.GET)))


@operator_page
def queue_cards(request: OperatorRequest) -> HttpResponse:
    """Some cards as a fragment, in any status, for an open page to update."""
    others = bottles_assigned_to_others(request.user)
    found = _named(request.GET.getlist("id"))
    cards = [card_of(one, request.user, review=seen, others=others) for one, seen in found]
    return render(request, "supervise/queue/_cards.html", {"cards": cards})


def _named(ids: list[str]) -> list[tuple[Proposal, Review | None]]:
    """Proposals by id, in any status, with the review of those that are pending."""
    if not ids:  # usually: an open page shows what its view has
        return []
    known = Proposal.objects.filter(pk__in=[text for text in ids[:PAGE] if _is_uuid(text)])
    found = list(known.select_related("bottle", "decision").prefetch_related("approvals__actor"))
    reviews = queries.reviews_of([one for one in found if one.is_pending])
    pending = {item.proposal.pk: item for item in reviews}
    return [(one, pending.get(one.pk)) for one in found]


@operator_page
def queue_state(request: OperatorRequest) -> JsonResponse:
    """The cards and their states, so that an open page fetches only what changed."""
    wanted, since = Filter.of_query(request.GET), Since.of_text(request.GET.get("since", ""))
    ids = request.GET.getlist("id")
    view = shared.get(("queue state", wanted), lambda: _view_state(wanted))
    states = dict(view["cards"])
    for one, seen in _named([text for text in ids if text not in states]):
        states[str(one.pk)] = state_of(seen, one, queries.decision_of(one))
    named = [UUID(text) for text in ids[:PAGE] if _is_uuid(text)]
    own = {
        "cards": states,
        "arrived": arrived(wanted, since, shown=named),
        "now": timezone.now().timestamp(),
    }
    return JsonResponse({**view, **own})


def _view_state(wanted: Filter) -> dict[str, Any]:
    """The part that is the same for every page with this view: every viewer sees all of it."""
    shown = page_of(wanted)
    return {
        "counts": queries.counts(),
        "proxy": proxy_state(),
        "cards": {str(item.proposal.pk): state_of(item, item.proposal, None) for item in shown.reviews},
        "after": shown.after,
    }


@operator_page
def proposal(request: OperatorRequest, proposal_id: UUID) -> HttpResponse:
    opened = request.GET.get("open", "")
    return proposal_page(request, get_proposal(proposal_id), opened=opened if opened in PANELS else "")


def proposal_page(
    request: OperatorRequest,
    current: Proposal,
    *,
    status: int = 200,
    edit: Edit | None = None,
    **context: Any,
) -> HttpResponse:
    """The whole page, or only its content for the page's script."""
    detail = detail_of(current, request.user, edit=edit)
    context |= {"detail": detail, "card": detail.card}
    if is_fragment(request):
        return render(request, "supervise/proposal/_detail.html", context, status=status)
    title = f"{current.bottle.slug}: {target_of(current)}"
    return page(request, "supervise/proposal/proposal.html", status=status, title=title, **context)


@operator_page
def standing_refusals(request: OperatorRequest) -> HttpResponse:
    standing = refusals.standing().select_related("decision__proposal__bottle")[:500]
    lines = [(refusal, summary_of(refusal.decision.proposal)) for refusal in standing]
    return page(
        request,
        "supervise/queue/refusals.html",
        title="Standing refusals",
        lines=lines,
        may_decide=may_decide(request.user),
    )


@operator_page
def history(request: OperatorRequest) -> HttpResponse:
    # The list shows none of the large columns; each proposal's page does.
    decided = queries.history().defer(
        "final_payload", "granted", "not_granted", "proposal__justification", "table_version__content"
    )
    before, after = (request.GET.get(name, "") for name in ("before", "after"))
    shown = keyset.page_of(decided, HISTORY_PAGE, before=before, after=after)
    lines = [(decision, summary_of(decision.proposal)) for decision in shown.rows]
    return page(request, "supervise/queue/history.html", title="History", page=shown, lines=lines)


def _list_context(request: OperatorRequest, wanted: Filter) -> dict[str, Any]:
    shown: QueuePage = page_of(wanted)
    others = bottles_assigned_to_others(request.user)
    cards: list[Card] = [
        card_of(item.proposal, request.user, review=item, others=others) for item in shown.reviews
    ]
    return {"filter": wanted, "shown": shown, "cards": cards}


def _is_uuid(text: str) -> bool:
    try:
        UUID(text)
    except ValueError:
        return False
    return True
