"""The operator's pages: the live queue, one proposal, the history, and the three forms that decide.

Trust boundary: readers are signed-in operators; what they read was written by agents. Every decision goes
through `supervise.decisions`, which checks the permission and the digest of what was shown.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any
from uuid import UUID

from django.conf import settings
from django.contrib import admin, messages
from django.contrib.auth.models import User
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from egress.models import RouteTableVersion

from . import decisions, queries
from .cards import card_of, pending_card, state_of, summary_of, target_of, with_edit
from .diffs import Diff, line_diff
from .editing import Edit, edit_of_form
from .errors import AlreadyDecided, BadAsk, MissingReason, NoSuchProposal, NotPermitted, StaleReview
from .models import Approval, Decision, Proposal
from .permissions import may_view
from .reviewing import table_text

QUEUE_LIMIT = 200
HISTORY_PAGE = 50
View = Callable[..., HttpResponseBase]


class OperatorRequest(HttpRequest):
    """Past `admin_view` there is always a signed-in user."""

    user: User


def operator_page(view: View) -> View:
    """A page to read, for staff who may see proposals. Others sign in first, or get 403."""
    return require_safe(admin.site.admin_view(_for_watchers(view)))


def operator_form(view: View) -> View:
    """A form's target: POST only. Who is signed out comes back to the proposal, not to this address."""
    guarded = admin.site.admin_view(_for_watchers(view))

    @require_POST
    def post(request: HttpRequest, proposal_id: UUID) -> HttpResponseBase:
        if not admin.site.has_permission(request):
            return redirect_to_login(reverse("proposal", args=[proposal_id]), reverse("admin:login"))
        return guarded(request, proposal_id)

    return post


def _for_watchers(view: View) -> View:
    @wraps(view)
    def watched(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if not may_view(request.user):
            raise PermissionDenied("Seeing proposals needs the permission 'view_proposal'.")
        return view(request, *args, **kwargs)

    return watched


@operator_page
def queue(request: OperatorRequest) -> HttpResponse:
    reviews = queries.pending_reviews(limit=QUEUE_LIMIT)
    counts = queries.counts()
    return _page(
        request,
        "supervise/queue.html",
        title="Queue",
        cards=[pending_card(review, request.user, brief=True) for review in reviews],
        counts=counts,
        not_shown=max(0, counts["pending"] - len(reviews)),
        proxy_news=queries.proxy_news(),
    )


@operator_page
def queue_state(request: OperatorRequest) -> JsonResponse:
    """Which cards are pending and how they look, so that an open page fetches only what changed."""
    reviews = queries.pending_reviews(limit=QUEUE_LIMIT)
    return JsonResponse(
        {
            "counts": queries.counts(),
            "cards": {str(review.proposal.pk): state_of(review, review.proposal, None) for review in reviews},
        }
    )


@operator_page
def proposal(request: OperatorRequest, proposal_id: UUID) -> HttpResponse:
    return _proposal_page(request, _get(proposal_id))


@operator_page
def card(request: OperatorRequest, proposal_id: UUID) -> HttpResponse:
    """One card by itself, for the open queue page to put in its place."""
    shown = card_of(_get(proposal_id), request.user, brief=True)
    return render(request, "supervise/_card.html", {"card": shown})


@operator_page
def history(request: OperatorRequest) -> HttpResponse:
    # The list shows none of the large columns; each proposal's page does.
    decided = queries.history().defer(
        "final_payload", "granted", "not_granted", "proposal__justification", "table_version__content"
    )
    page = Paginator(decided, HISTORY_PAGE).get_page(request.GET.get("page"))
    lines = [(decision, summary_of(decision.proposal)) for decision in page]
    return _page(request, "supervise/history.html", title="History", page=page, lines=lines)


@operator_form
def approve(request: OperatorRequest, proposal_id: UUID) -> HttpResponse:
    return _decide(request, proposal_id, "approve", decisions.approve)


@operator_form
def reject(request: OperatorRequest, proposal_id: UUID) -> HttpResponse:
    return _decide(request, proposal_id, "reject", decisions.reject)


@operator_form
def modify(request: OperatorRequest, proposal_id: UUID) -> HttpResponse:
    edit: Edit | None = None
    try:
        edit = edit_of_form(_get(proposal_id), request.POST)
        payload = edit.payload()
    except BadAsk as error:
        return _refused(request, proposal_id, 400, error.message, opened="modify", edit=edit)
    return _decide(request, proposal_id, "modify", decisions.modify, edit=edit, payload=payload)


def _decide(
    request: OperatorRequest,
    proposal_id: UUID,
    opened: str,
    verb: Callable[..., Decision | Approval],
    *,
    edit: Edit | None = None,
    **arguments: Any,
) -> HttpResponse:
    try:
        result = verb(
            proposal_id,
            actor=request.user,
            seen_digest=request.POST.get("seen_digest", ""),
            note=request.POST.get("note", "").replace("\r\n", "\n"),
            **arguments,
        )
    except NoSuchProposal as error:
        raise Http404(error.message) from error
    except NotPermitted as error:
        return _refused(request, proposal_id, 403, error.message)
    except AlreadyDecided as error:
        return _refused(request, proposal_id, 409, f"{error.message} Your answer was not used.")
    except StaleReview as error:
        return _refused(request, proposal_id, 409, error.message, opened=opened, edit=edit, is_stale=True)
    except (BadAsk, MissingReason) as error:
        return _refused(request, proposal_id, 400, error.message, opened=opened, edit=edit)
    _tell(request, result)
    if request.POST.get("back") == "queue":
        return redirect("queue")
    return redirect("proposal", proposal_id)


def _refused(
    request: OperatorRequest,
    proposal_id: UUID,
    status: int,
    problem: str,
    *,
    opened: str = "",
    edit: Edit | None = None,
    is_stale: bool = False,
) -> HttpResponse:
    """The proposal as it is now, with what was typed, and why nothing was decided."""
    current = _get(proposal_id)
    return _proposal_page(
        request,
        current,
        status=status,
        edit=edit,
        problem=problem,
        opened=opened,
        note=request.POST.get("note", ""),
        changed_since=_changed_since(current, request.POST.get("seen_version", "")) if is_stale else None,
    )


def _changed_since(current: Proposal, seen_version: str) -> Diff | None:
    """What others changed in the bottle's table after the operator looked."""
    if not (seen_version.isascii() and seen_version.isdigit() and len(seen_version) < 10):
        return None
    versions = RouteTableVersion.objects.filter(bottle=current.bottle)
    seen = versions.filter(version=int(seen_version)).first()
    if seen is None:
        return None
    diff = line_diff(table_text(seen.table), table_text(versions.latest("version").table))
    return diff if diff.rows else None


def _proposal_page(
    request: OperatorRequest,
    current: Proposal,
    *,
    status: int = 200,
    edit: Edit | None = None,
    **context: Any,
) -> HttpResponse:
    shown = card_of(current, request.user, brief=False)
    if edit is not None and shown.review is not None:
        shown = with_edit(shown, edit)
    title = f"{current.bottle.slug}: {target_of(current)}"
    return _page(request, "supervise/proposal.html", status=status, title=title, card=shown, **context)


def _page(request: OperatorRequest, template: str, *, status: int = 200, **context: Any) -> HttpResponse:
    context = {**admin.site.each_context(request), "is_nav_sidebar_enabled": False, **context}
    return render(request, template, context, status=status)


def _get(proposal_id: UUID) -> Proposal:
    try:
        return queries.get_proposal(proposal_id)
    except NoSuchProposal as error:
        raise Http404(error.message) from error


def _tell(request: OperatorRequest, result: Decision | Approval) -> None:
    asked = result.proposal
    what = f"{target_of(asked)} for {asked.bottle.slug}"
    if isinstance(result, Approval):
        said = Approval.objects.filter(proposal=asked, granted_digest=result.granted_digest).count()
        needed = settings.SUPERVISE_QUORUM
        messages.info(request, f"Your yes to {what} counts: {said} of {needed}. Another operator must agree.")
        return
    result.refresh_from_db()  # it was applied after the commit
    if result.applied == Decision.Applied.FAILED:
        text = f"{result.status}, not live: {what}. The reason: {result.apply_error}. It is retried."
        messages.warning(request, text)
    else:
        messages.success(request, f"{result.status}: {what}{_applied(result)}")


def _applied(decision: Decision) -> str:
    match decision.applied:
        case Decision.Applied.LIVE:
            return f" → live as table version {decision.live_version}."
        case Decision.Applied.RECORDED:
            return ". The Dockerfile is recorded; the bottle runs its present image until it is rebuilt."
        case Decision.Applied.WAITING:
            return ", and being applied."
    return ". The agent reads your reason."
