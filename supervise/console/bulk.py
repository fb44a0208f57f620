"""Deciding many at once: a page that lists every item with its digest, then a report of each result.

Any proposal can be rejected; only low risk can be approved, checked again inside the decision.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from django.http import HttpResponse, QueryDict

from supervise.access.permissions import bottles_assigned_to_others, may_decide
from supervise.console.cards import Card, card_of, summary_of
from supervise.console.decision_forms import result_message
from supervise.console.queue_query import PAGE
from supervise.console.views import OperatorRequest, operator_form, operator_page, page
from supervise.errors import StaleReview, SuperviseError
from supervise.models import Approval, Decision, Proposal
from supervise.proposals import decisions
from supervise.proposals.kind import ChangesSince
from supervise.proposals.queries import get_proposal, review_of, reviews_of
from supervise.proposals.risk import Level
from supervise.proposals.staleness import changed_since

VERBS = ("approve", "reject")


@dataclass(frozen=True, slots=True)
class Result:
    proposal: Proposal
    summary: str
    is_done: bool
    text: str
    changed: ChangesSince | None = None  # since the list was made


@operator_page
def bulk(request: OperatorRequest) -> HttpResponse:
    """The confirmation page of the picked proposals."""
    verb = request.GET.get("verb", "")
    return _confirm(request, verb if verb in VERBS else "reject", _ids(request.GET))


@operator_form
def bulk_reject(request: OperatorRequest) -> HttpResponse:
    note = request.POST.get("note", "").replace("\r\n", "\n")
    if not note.strip():
        problem = "Say why: each agent reads the reason and acts on it."
        return _confirm(request, "reject", _ids(request.POST), problem=problem, status=400)

    def refuse(pk: UUID, seen: str) -> Decision:
        return decisions.reject(pk, actor=request.user, seen_digest=seen, note=note)

    return _report(request, "reject", refuse)


@operator_form
def bulk_approve(request: OperatorRequest) -> HttpResponse:
    note = request.POST.get("note", "").replace("\r\n", "\n")

    def grant(pk: UUID, seen: str) -> Decision | Approval:
        return decisions.approve(pk, actor=request.user, seen_digest=seen, note=note, at_most=Level.LOW)

    return _report(request, "approve", grant)


def _confirm(
    request: OperatorRequest, verb: str, ids: list[UUID], *, problem: str = "", status: int = 200
) -> HttpResponse:
    found = Proposal.objects.filter(pk__in=ids).select_related("bottle").prefetch_related("approvals__actor")
    pending = [proposal for proposal in found if proposal.is_pending]
    others = bottles_assigned_to_others(request.user)
    cards = [card_of(one.proposal, request.user, review=one, others=others) for one in reviews_of(pending)]
    ready, left_out = _sorted_out(verb, cards)
    return page(
        request,
        "supervise/bulk/bulk.html",
        status=status,
        title="Approve several" if verb == "approve" else "Reject several",
        verb=verb,
        cards=ready,
        left_out=left_out,
        decided=len(found) - len(pending),
        problem=problem,
        may_decide=may_decide(request.user),
    )


def _sorted_out(verb: str, cards: list[Card]) -> tuple[list[Card], list[Card]]:
    """The cards that can be decided in bulk, and those that must be decided one by one."""
    taken = [card for card in cards if verb == "reject" or card.is_low_risk]
    return taken, [card for card in cards if card not in taken]


def _report(
    request: OperatorRequest, verb: str, decide: Callable[[UUID, str], Decision | Approval]
) -> HttpResponse:
    """Decide each by itself: one failure does not affect the others."""
    results = [_one(pk, request.POST, decide) for pk in _ids(request.POST)]
    return page(
        request,
        "supervise/bulk/report.html",
        title="Approved" if verb == "approve" else "Rejected",
        results=[result for result in results if result is not None],
        done=sum(1 for result in results if result is not None and result.is_done),
    )


def _one(pk: UUID, form: QueryDict, decide: Callable[[UUID, str], Decision | Approval]) -> Result | None:
    try:
        asked = get_proposal(pk)
    except SuperviseError:
        return None
    try:
        _, text = result_message(decide(pk, form.get(f"seen-{pk}", "")))
    except StaleReview as error:
        changed = changed_since(form.get(f"note-{pk}", ""), review_of(get_proposal(pk)))
        return Result(asked, summary_of(asked), is_done=False, text=error.message, changed=changed)
    except SuperviseError as error:
        return Result(asked, summary_of(asked), is_done=False, text=error.message)
    return Result(asked, summary_of(asked), is_done=True, text=text)


def _ids(form: QueryDict) -> list[UUID]:
    ids = []
    for text in form.getlist("id")[:PAGE]:
        try:
            ids.append(UUID(text))
        except ValueError:
            continue
    return list(dict.fromkeys(ids))
