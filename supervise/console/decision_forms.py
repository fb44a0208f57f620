"""The forms of a proposal's page: approve, modify, preview, reject, snooze, wake; and lifting a refusal.

Every change goes through a function of `proposals`, which checks the permission and the digest of what was
shown. The answer is a redirect or, for the page's script, the part of the page that says what happened.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.http import Http404, HttpResponse, QueryDict
from django.shortcuts import redirect, render
from django.utils import timezone

from supervise.console.cards import detail_of, target_of
from supervise.console.views import OperatorRequest, get_proposal, is_fragment, operator_form, proposal_page
from supervise.errors import AlreadyDecided, BadAsk, MissingReason, NoSuchProposal, NotPermitted, StaleReview
from supervise.models import Approval, Decision, Proposal
from supervise.proposals import decisions, quorum, standing_refusals
from supervise.proposals import snooze as snoozing
from supervise.proposals.kind import Edit, kind_of
from supervise.proposals.queries import review_of
from supervise.proposals.risk import Level
from supervise.proposals.staleness import changed_since

SNOOZES = {"15m": timedelta(minutes=15), "1h": timedelta(hours=1)}
FURTHEST_OFFSET = 14 * 60  # minutes from UTC


@operator_form
def approve(request: OperatorRequest, proposal_id: UUID) -> HttpResponse:
    return _decide(request, proposal_id, "approve", decisions.approve)


@operator_form
def reject(request: OperatorRequest, proposal_id: UUID) -> HttpResponse:
    stop = request.POST.get("stop_asking") == "yes"
    return _decide(request, proposal_id, "reject", decisions.reject, stop_asking=stop)


@operator_form
def modify(request: OperatorRequest, proposal_id: UUID) -> HttpResponse:
    edit: Edit | None = None
    try:
        edit = kind_of(get_proposal(proposal_id)).edit_of_form(request.POST)
        payload = edit.payload()
    except BadAsk as error:
        return _refused(request, proposal_id, 400, error.message, opened="modify", edit=edit)
    return _decide(request, proposal_id, "modify", decisions.modify, edit=edit, payload=payload)


@operator_form
def preview(request: OperatorRequest, proposal_id: UUID) -> HttpResponse:
    """Show what the form's edit would do. Changes nothing; a POST because an edit can be long."""
    current = get_proposal(proposal_id)
    try:
        edit = kind_of(current).edit_of_form(request.POST)
    except BadAsk as error:
        return _refused(request, proposal_id, 400, error.message)
    if is_fragment(request):
        detail = detail_of(current, request.user, edit=edit)
        return render(request, "supervise/proposal/_preview.html", {"detail": detail, "card": detail.card})
    note = request.POST.get("note", "")
    return proposal_page(request, current, edit=edit, opened="modify", note=note)


@operator_form
def snooze(request: OperatorRequest, proposal_id: UUID) -> HttpResponse:
    try:
        until = _snooze_end(request.POST)
        snoozed = snoozing.snooze(proposal_id, actor=request.user, until=until)
    except (NoSuchProposal, NotPermitted, AlreadyDecided, BadAsk) as error:
        return _refused_by(request, proposal_id, error)
    text = f"Snoozed for everyone until {until:%Y-%m-%d %H:%M} UTC: {_what(snoozed)}."
    return _done(request, messages.INFO, text)


@operator_form
def wake(request: OperatorRequest, proposal_id: UUID) -> HttpResponse:
    try:
        woken = snoozing.wake(proposal_id, actor=request.user)
    except (NoSuchProposal, NotPermitted, AlreadyDecided) as error:
        return _refused_by(request, proposal_id, error)
    return _done(request, messages.INFO, f"Back in the queue: {_what(woken)}.")


@operator_form
def lift(request: OperatorRequest, refusal_id: int) -> HttpResponse:
    try:
        lifted = standing_refusals.lift(refusal_id, actor=request.user)
    except (NoSuchProposal, NotPermitted) as error:
        messages.error(request, error.message)
    else:
        what = _what(lifted.decision.proposal)
        messages.success(request, f"Lifted: the next ask for {what} is a card again.")
    return redirect("standing-refusals")


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
    except (NoSuchProposal, NotPermitted, AlreadyDecided) as error:
        return _refused_by(request, proposal_id, error)
    except StaleReview as error:
        return _refused(request, proposal_id, 409, error.message, opened=opened, edit=edit, is_stale=True)
    except (BadAsk, MissingReason) as error:
        return _refused(request, proposal_id, 400, error.message, opened=opened, edit=edit)
    level, text = result_message(result)
    return _done(request, level, text)


def _refused_by(
    request: OperatorRequest,
    proposal_id: UUID,
    error: NoSuchProposal | NotPermitted | AlreadyDecided | BadAsk,
) -> HttpResponse:
    if isinstance(error, NoSuchProposal):
        raise Http404(error.message) from error
    if isinstance(error, AlreadyDecided):
        return _refused(request, proposal_id, 409, f"{error.message} Your answer was not used.")
    return _refused(request, proposal_id, 403 if isinstance(error, NotPermitted) else 400, error.message)


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
    """Show the proposal as it is now, with what was typed, and why nothing was decided."""
    current = get_proposal(proposal_id)
    return proposal_page(
        request,
        current,
        status=status,
        edit=edit,
        problem=problem,
        opened=opened,
        note=request.POST.get("note", ""),
        changed=changed_since(request.POST.get("seen", ""), review_of(current)) if is_stale else None,
    )


def _done(request: OperatorRequest, level: int, text: str) -> HttpResponse:
    if is_fragment(request):
        kind = messages.DEFAULT_TAGS[level]
        return render(request, "supervise/proposal/_outcome.html", {"kind": kind, "text": text})
    messages.add_message(request, level, text)
    return redirect("queue")


def result_message(result: Decision | Approval) -> tuple[int, str]:
    """The result in one sentence for the operator, and the level of the message."""
    what = _what(result.proposal)
    if isinstance(result, Approval):
        said = len(quorum.votes_for(result.proposal, result.granted_digest))
        needed = quorum.operators_needed(Level.HIGH)
        text = f"Your approval of {what} was recorded ({said} of {needed}). Another operator must agree."
        return messages.INFO, text
    status = result.status.capitalize()
    if result.applied == Decision.Applied.FAILED:
        text = f"{status}, not live: {what}. The reason: {result.apply_error}. It is retried."
        return messages.WARNING, text
    return messages.SUCCESS, f"{status}: {what}{kind_of(result.proposal).confirmation(result)}"


def _what(asked: Proposal) -> str:
    return f"{target_of(asked)} for {asked.bottle.slug}"


def _snooze_end(form: QueryDict) -> datetime:
    wanted, now = form.get("for", ""), timezone.now()
    if wanted in SNOOZES:
        return now + SNOOZES[wanted]
    if wanted != "tomorrow":
        raise BadAsk("Choose how long to snooze it: 15 minutes, an hour or until tomorrow.")
    offset = form.get("utc_offset", "0")
    is_known = offset.removeprefix("-").isdigit() and offset.isascii() and abs(int(offset)) <= FURTHEST_OFFSET
    return snoozing.tomorrow(now, utc_offset=timedelta(minutes=int(offset) if is_known else 0))
