"""Carrying a committed decision to the data plane: publish, mark live, wake the call. Safe to repeat."""

from __future__ import annotations

import logging
from datetime import timedelta

from django.db import transaction
from django.utils import timezone

from botbottle.models import Bottle
from egress import store

from . import audit, events, images
from .models import Decision, Proposal
from .outcomes import outcome_of
from .waiting import hub

log = logging.getLogger(__name__)
UNFINISHED = (Decision.Applied.WAITING, Decision.Applied.FAILED)
GRACE = timedelta(seconds=2)  # the decider itself applies at once; only what it left behind is retried


def apply(decision: Decision) -> Decision:
    """Publish the bottle's newest table. A failure is kept, told to the agent and retried.

    A new image is made by a process of its own, which settles the decision when it is done.
    """
    if decision.proposal.tool == Proposal.Tool.CAPABILITY:
        rebuild = images.newest_of(decision)
        if rebuild is not None:
            images.launch(rebuild)
        return decision
    bottle = decision.proposal.bottle
    try:
        live_version = store.publish(bottle)
    except store.NotPublished as error:
        problem = str(error)
        if problem != decision.apply_error:  # a retry that fails in the same way is no news
            log.error("Proposal %s is approved but not live: %s", decision.proposal_id, problem)
        return settle(decision, Decision.Applied.FAILED, apply_error=problem)
    return settle(
        decision,
        Decision.Applied.LIVE,
        apply_error="",
        live_version=live_version,
        live_at=timezone.now(),
    )


def retry_unfinished() -> int:
    """Apply again what failed, or was left waiting by a process that died. Returns how many are live now."""
    unfinished = (
        Decision.objects.filter(applied__in=UNFINISHED, created_at__lt=timezone.now() - GRACE)
        .exclude(proposal__bottle__state=Bottle.State.DELETED)
        .exclude(proposal__tool=Proposal.Tool.CAPABILITY)  # looked after by supervise.rebuilding
        .order_by("created_at")
    )
    live, stuck = 0, set()
    for decision in unfinished.select_related("proposal__bottle")[:5000]:
        if decision.proposal.bottle_id in stuck:
            continue  # one try a round and bottle: many decisions fail for the same reason
        if apply(decision).applied == Decision.Applied.LIVE:
            live += 1
        else:
            stuck.add(decision.proposal.bottle_id)
    return live


def reopen(decision: Decision, *, author: str) -> None:
    """What failed is tried once more. Call inside the transaction that queues the new try."""
    Decision.objects.filter(pk=decision.pk, applied=Decision.Applied.FAILED).update(
        applied=Decision.Applied.WAITING, apply_error=""
    )
    decision.refresh_from_db(fields=["applied", "apply_error"])
    slug, proposal = decision.proposal.bottle.slug, decision.proposal
    audit.append("tried again", actor_name=author, bottle_slug=slug, proposal_id=proposal.pk)
    events.announce("tried again", proposal, wake=False)


def settle(decision: Decision, applied: str, **columns: object) -> Decision:
    """It is live, or failed: keep that, and wake the call. Whoever finds it live already changes nothing."""
    before = decision.applied
    with transaction.atomic():
        claimed = Decision.objects.filter(pk=decision.pk, applied__in=UNFINISHED)
        if not claimed.update(applied=applied, **columns):
            decision.refresh_from_db(fields=["applied", *columns])
            return decision
        for name, value in {"applied": applied, **columns}.items():
            setattr(decision, name, value)
        if before == applied:
            return decision
        audit.append(
            applied,
            actor_name="bot-bottle",
            bottle_slug=decision.proposal.bottle.slug,
            proposal_id=decision.proposal_id,
            details={"live_version": decision.live_version, "problem": decision.apply_error},
        )
        outcome = outcome_of(decision.proposal, decision)
        transaction.on_commit(lambda: hub.tell(outcome), robust=True)
        events.announce(applied, decision.proposal)
    return decision
