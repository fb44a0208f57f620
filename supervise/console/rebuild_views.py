"""A rebuild on the console: its progress, its log as it grows, and the buttons to go back or to try again.

Trust boundary: log, file names and branch come from an agent's build or workspace, and are shown as such.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from uuid import UUID

from django.contrib import messages
from django.contrib.auth.models import User
from django.http import Http404, HttpResponse
from django.shortcuts import redirect, render

from egress.models import TrafficRecord
from supervise.access.permissions import may_decide_for
from supervise.bottles import build_log, images
from supervise.bottles import rebuild as rebuilding
from supervise.bottles.images import Phase
from supervise.console.views import OperatorRequest, get_proposal, operator_form, operator_page
from supervise.errors import SuperviseError
from supervise.models import Decision, Proposal, Rebuild
from supervise.proposals import queries
from supervise.proposals.kind import kind_of

LOG_SHOWN = 40_000  # characters: its end
STEPS = (
    (Phase.SNAPSHOT, "workspace noted"),
    (Phase.BUILDING, "image built"),
    (Phase.CANARY, "canary tried"),
    (Phase.SWAPPING, "bottle replaced"),
)


@dataclass(frozen=True)
class Panel:
    proposal: Proposal
    rebuild: Rebuild
    decides: bool

    @property
    def steps(self) -> list[tuple[str, str]]:
        """Each step with its state: done, now, failed or later."""
        if self.rebuild.phase == Phase.LIVE:
            return [("done", name) for _, name in STEPS]
        order = [phase for phase, _ in STEPS]
        reached = self._reached
        at = order.index(reached) if reached in order else -1
        word = "failed" if self.rebuild.phase == Phase.FAILED else "now"
        words = (
            ["done"] * max(at, 0) + ([word] if at >= 0 else []) + ["later"] * (len(order) - max(at, -1) - 1)
        )
        return [(word, name) for word, (_, name) in zip(words, STEPS, strict=True)]

    @property
    def _reached(self) -> Phase:
        """A failed rebuild shows by its columns how far it came."""
        rebuild = self.rebuild
        if rebuild.phase != Phase.FAILED:
            return Phase(rebuild.phase)
        if rebuild.previous_dockerfile or rebuild.was_running:
            return Phase.SWAPPING
        if rebuild.image:
            return Phase.CANARY
        return Phase.BUILDING if rebuild.build_started_at else Phase.SNAPSHOT

    @cached_property
    def log(self) -> build_log.Part:
        """The end of the log; a script continues from there."""
        return build_log.end(images.log_path(self.rebuild), LOG_SHOWN)

    @property
    def progress(self) -> str:
        return images.progress_of(self.rebuild)

    @property
    def refused(self) -> list[tuple[TrafficRecord, str]]:
        found = images.refused_hosts(self.rebuild)
        return [(record, json.dumps(record.ask, ensure_ascii=False)) for record in found]

    @property
    def is_in_force(self) -> bool:
        newest = images.newest_live(self.proposal.bottle.slug)
        return newest is not None and newest.pk == self.rebuild.pk

    @property
    def may_roll_back(self) -> bool:
        return self.decides and self.is_in_force and rebuilding.can_roll_back(self.rebuild)

    @property
    def may_try_again(self) -> bool:
        return self.decides and self.rebuild.phase == Phase.FAILED


def panel_of(decision: Decision, reader: User) -> Panel | None:
    rebuild = images.newest_of(decision)
    if rebuild is None:
        return None
    return Panel(decision.proposal, rebuild, may_decide_for(reader, rebuild.bottle))


@operator_page
def panel(request: OperatorRequest, proposal_id: UUID) -> HttpResponse:
    """The panel by itself, for the open page to put in its place."""
    decision = _decision(proposal_id)
    return render(request, "supervise/rebuild/_rebuild.html", {"panel": panel_of(decision, request.user)})


@operator_form
def roll_back(request: OperatorRequest, proposal_id: UUID) -> HttpResponse:
    decision = _decision(proposal_id)
    bottle = decision.proposal.bottle
    try:
        author = rebuilding.check_permission(request.user, bottle)
        rebuild = images.newest_of(decision)
        newest = images.newest_live(bottle.slug)
        if rebuild is None or newest is None or newest.pk != rebuild.pk:
            raise rebuilding.NotRebuilt("Another image is in force by now. Look again.")
        images.launch(rebuilding.roll_back(bottle.slug, author=author))
    except SuperviseError as error:
        messages.error(request, error.message)
    else:
        messages.success(request, f"{bottle.slug} goes back to the image before.")
    return redirect("proposal", proposal_id=proposal_id)


@operator_form
def again(request: OperatorRequest, proposal_id: UUID) -> HttpResponse:
    decision = _decision(proposal_id)
    try:
        author = rebuilding.check_permission(request.user, decision.proposal.bottle)
        images.launch(rebuilding.again(decision, author=author))
    except SuperviseError as error:
        messages.error(request, error.message)
    else:
        messages.success(request, f"{decision.proposal.bottle.slug} is built again.")
    return redirect("proposal", proposal_id=proposal_id)


def _decision(proposal_id: UUID) -> Decision:
    decision = queries.decision_of(get_proposal(proposal_id))
    if decision is None or not kind_of(decision.proposal).builds_image:
        raise Http404("This proposal has no rebuild.")
    return decision
