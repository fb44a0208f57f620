"""The page of one draft: what a bottle was refused, what allowing it would change, and the form for that."""

from __future__ import annotations

import json

from django.contrib import messages
from django.http import Http404, HttpResponse
from django.shortcuts import redirect, render

from supervise.access.permissions import may_decide_for
from supervise.bottles.records import NoSuchBottle
from supervise.bottles.records import get as get_bottle
from supervise.console.cards import Change, summary_of
from supervise.console.decision_forms import result_message
from supervise.console.views import OperatorRequest, draft_lines, operator_form, operator_page, page
from supervise.errors import SuperviseError
from supervise.proposals import drafts
from supervise.proposals.drafts import Draft
from supervise.proposals.precedents import MOST_REFUSED, would_allow
from supervise.proposals.staleness import changed_since, fingerprint


@operator_page
def queue_drafts(request: OperatorRequest) -> HttpResponse:
    """The queue's list of drafts by itself, for an open page to put in its place."""
    return render(request, "supervise/queue/_drafts.html", {"drafts": draft_lines()})


@operator_page
def draft(request: OperatorRequest) -> HttpResponse:
    """The draft of one bottle, host and tool, as the newest refusals make it."""
    wanted = {name: request.GET.get(name, "") for name in ("bottle", "host")}
    found = drafts.drafts(**wanted) if all(wanted.values()) else []
    by_tool = {one.tool: one for one in reversed(found)}
    shown = by_tool.get(request.GET["tool"]) if "tool" in request.GET else next(iter(found), None)
    if shown is None:
        messages.info(request, "None of this is refused any more, or somebody asked for it.")
        return redirect("queue")
    return _page(request, shown)


@operator_form
def approve_draft(request: OperatorRequest) -> HttpResponse:
    shown: Draft | None = None
    try:
        shown = _draft_of_form(request)
        note = request.POST.get("note", "").replace("\r\n", "\n")
        seen = request.POST.get("seen_digest", "")
        level, text = result_message(drafts.approve(shown, actor=request.user, seen_digest=seen, note=note))
    except NoSuchBottle as error:
        raise Http404(error.message) from error
    except SuperviseError as error:
        if shown is None:
            messages.error(request, error.message)
            return redirect("queue")
        status = {"not_permitted": 403, "stale_review": 409}.get(error.code, 400)
        return _page(request, shown, status=status, problem=error.message, is_stale=status == 409)
    messages.add_message(request, level, text)
    return redirect("queue")


def _draft_of_form(request: OperatorRequest) -> Draft:
    bottle = get_bottle(request.POST.get("bottle", ""))
    try:
        payload = json.loads(request.POST.get("payload", ""))
    except (ValueError, RecursionError):
        payload = None
    return drafts.draft_of(bottle, request.POST.get("tool", ""), payload)


def _page(
    request: OperatorRequest, shown: Draft, *, status: int = 200, problem: str = "", is_stale: bool = False
) -> HttpResponse:
    review = drafts.review_draft(shown)
    table = review.table_after
    return page(
        request,
        "supervise/proposal/draft.html",
        status=status,
        title=f"{shown.bottle.slug}: {shown.host}",
        draft=shown,
        change=Change(review),
        summary=summary_of(shown.unfiled),
        payload=json.dumps(shown.payload),
        refused=would_allow(shown.bottle, shown.host, table)[:MOST_REFUSED] if table else [],
        seen=fingerprint(review),
        problem=problem,
        changed=changed_since(request.POST.get("seen", ""), review) if is_stale else None,
        note=request.POST.get("note", ""),
        may_decide=may_decide_for(request.user, shown.bottle),
    )
