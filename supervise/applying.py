"""Carrying a committed decision to the data plane: publish, mark live, wake the call. Safe to repeat."""

from __future__ import annotations

import logging
from datetime import timedelta

from django.db import transaction
from django.utils import timezone

from egress import store

from . import audit, events
from .models import Decision

log = logging.getLogger(__name__)
GRACE = timedelta(seconds=2)  # the decider itself applies at once; only what it left behind is retried


def apply(decision_id: int) -> Decision:
    """Publish the bottle's newest table. A failure is kept on the decision, told to the agent, and retried."""
    decision = Decision.objects.select_related("proposal__bottle", "table_version").get(pk=decision_id)
    bottle = decision.proposal.bottle
    try:
        live_version = store.publish(bottle)
    except OSError as error:
        problem = f"the route table could not be written: {error.strerror or error}"
        log.error("Proposal %s is approved but not live: %s", decision.proposal_id, problem)
        store.note_problem(bottle, problem)
        return _settle(decision, Decision.Applied.FAILED, apply_error=problem)
    return _settle(
        decision,
        Decision.Applied.LIVE,
        apply_error="",
        live_version=live_version,
        live_at=timezone.now(),
    )


def retry_unfinished() -> int:
    """Apply again what failed, or was left waiting by a process that died. Returns how many are live now."""
    unfinished = Decision.objects.filter(
        applied__in=[Decision.Applied.WAITING, Decision.Applied.FAILED], created_at__lt=timezone.now() - GRACE
    )
    ids = list(unfinished.order_by("created_at").values_list("pk", flat=True)[:100])
    return sum(apply(pk).applied == Decision.Applied.LIVE for pk in ids)


def _settle(decision: Decision, applied: str, **columns: object) -> Decision:
    before = decision.applied
    with transaction.atomic():
        Decision.objects.filter(pk=decision.pk).update(applied=applied, **columns)
        decision.refresh_from_db()
        if before == applied == Decision.Applied.FAILED:
            return decision  # still the same failure: nothing new to record or to announce
        audit.append(
            applied,
            actor_name="bot-bottle",
            bottle_slug=decision.proposal.bottle.slug,
            proposal_id=decision.proposal_id,
            details={"live_version": decision.live_version, "problem": decision.apply_error},
        )
        events.announce(applied, decision.proposal)
    return decision
