"""Carry committed decisions to the data plane: publish, mark live, wake the call. Safe to repeat."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import timedelta

from django.db import transaction
from django.utils import timezone

from botbottle.models import Bottle
from egress.tables import homes, publishing
from supervise import audit, events
from supervise.models import Decision
from supervise.proposals.kind import kinds
from supervise.proposals.outcomes import outcome_of
from supervise.proposals.waiting import hub

log = logging.getLogger(__name__)
UNFINISHED = (Decision.Applied.WAITING, Decision.Applied.FAILED)
GRACE = timedelta(seconds=2)


def publish(decision: Decision) -> None:
    """Publish the bottle's newest table. A failure is recorded, reported to the agent and retried.

    A bottle of another home is left to that home's background job, and the call keeps waiting.
    """
    try:
        _go_live([decision], publishing.publish(decision.proposal.bottle))
    except publishing.PublishedElsewhere as error:
        events.call_home(error.home)
    except publishing.NotPublished as error:
        _fail([decision], str(error))


def publish_table(bottle: Bottle) -> None:
    """Publish the bottle's newest table; on failure only record the problem (the background job retries).

    Another home's bottle is left to that home, which is called.
    """
    _attempt(publishing.publish, bottle)


def unpublish_table(bottle: Bottle) -> None:
    """The same for the removal of a deleted bottle's files."""
    _attempt(publishing.unpublish, bottle)


def _attempt(change: Callable[[Bottle], object], bottle: Bottle) -> None:
    try:
        change(bottle)
    except publishing.PublishedElsewhere as error:
        events.call_home(error.home)
    except publishing.NotPublished:
        pass  # recorded with the publication


def retry_unfinished(*, at_once: bool = False) -> int:
    """Publish again for decisions that failed or were left waiting; returns how many are live now.

    A process that died leaves decisions waiting; so does another home, and then there is no need to wait
    (`at_once`). One try for each bottle: its newest table has what all its decisions granted.
    """
    live = 0
    away: dict[int, str] = {}
    for bottle, decisions in _unfinished(timedelta() if at_once else GRACE).items():
        process = publishing.process_of(bottle)
        if process in away:  # it would not answer for this bottle either
            _fail(decisions, away[process])
            continue
        try:
            live += _go_live(decisions, publishing.publish(bottle))
        except publishing.NotPublished as error:
            _fail(decisions, str(error))
            if isinstance(error, publishing.ProxyAway):
                away[process] = str(error)
    return live


def _unfinished(grace: timedelta) -> dict[Bottle, list[Decision]]:
    """Those of this home's bottles. The process that decided applies at once: the youngest are left to it."""
    others = [kind.name for kind in kinds() if not kind.changes_table]  # they apply in their own way
    unfinished = (
        Decision.objects.filter(applied__in=UNFINISHED)
        .filter(created_at__lt=timezone.now() - grace)
        .filter(proposal__bottle__publication__home=homes.home_id())
        .exclude(proposal__bottle__state=Bottle.State.DELETED)
        .exclude(tool__in=others)  # a wanted list would make SQLite read all of these tools
        .order_by("created_at")
    )
    found: dict[Bottle, list[Decision]] = {}
    for decision in unfinished.select_related("proposal__bottle")[:5000]:
        found.setdefault(decision.proposal.bottle, []).append(decision)
    return found


def _go_live(decisions: Sequence[Decision], live_version: int) -> int:
    columns = {"apply_error": "", "live_version": live_version, "live_at": timezone.now()}
    for decision in decisions:
        mark_applied(decision, Decision.Applied.LIVE, **columns)
    return len(decisions)


def _fail(decisions: Sequence[Decision], problem: str) -> None:
    """A retry that fails in the same way is not recorded again."""
    for decision in decisions:
        if decision.applied != Decision.Applied.FAILED or decision.apply_error != problem:
            log.error("Proposal %s is approved but not live: %s", decision.proposal_id, problem)
            mark_applied(decision, Decision.Applied.FAILED, apply_error=problem)


def reopen(decision: Decision, *, author: str) -> None:
    """Let a failed decision wait again. Call inside the transaction that queues the new try."""
    Decision.objects.filter(pk=decision.pk, applied=Decision.Applied.FAILED).update(
        applied=Decision.Applied.WAITING, apply_error=""
    )
    decision.refresh_from_db(fields=["applied", "apply_error"])
    slug, proposal = decision.proposal.bottle.slug, decision.proposal
    audit.append("tried again", actor_name=author, bottle_slug=slug, proposal_id=proposal.pk)
    events.announce("tried again", proposal, wake=False)


def mark_applied(decision: Decision, applied: str, **columns: object) -> Decision:
    """Record that a decision is live, or failed, and wake the call. Changes nothing if it is live already."""
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
        transaction.on_commit(lambda: hub.notify(outcome), robust=True)
        events.announce(applied, decision.proposal)
    return decision
