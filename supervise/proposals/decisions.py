"""The only place that changes a proposal's status.

Each function checks the permission, claims the row, and writes the decision, its change and its audit row in
one transaction. On commit it applies the change and wakes the calls that wait. Exactly one caller wins.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Subquery
from django.utils import timezone

from botbottle.core.sanitize import without_nul
from botbottle.models import Bottle
from egress.models import RouteTableVersion
from egress.tables import versions
from supervise import audit, events
from supervise.access.permissions import may_decide, may_decide_for
from supervise.digests import vote_digest
from supervise.errors import (
    AlreadyDecided,
    BadAsk,
    MissingReason,
    NoSuchProposal,
    NotPermitted,
    StaleReview,
    TooRisky,
)
from supervise.models import Approval, Decision, Proposal
from supervise.proposals import quorum, standing_refusals, submit
from supervise.proposals.kind import Review, kind_of
from supervise.proposals.outcomes import outcome_of
from supervise.proposals.review import checked_payload, find_facts, review
from supervise.proposals.risk import Level
from supervise.proposals.waiting import hub

Status = Proposal.Status


def approve(
    proposal_id: UUID | str,
    *,
    actor: User,
    seen_digest: str,
    note: str = "",
    at_most: Level = Level.HIGH,
) -> Decision | Approval:
    """Grant what was asked. Returns an Approval instead of a Decision while more operators must approve.

    Raises NotPermitted, NoSuchProposal, AlreadyDecided, StaleReview, and TooRisky above `at_most`.
    """
    return _grant(
        proposal_id, Status.APPROVED, None, actor=actor, seen_digest=seen_digest, note=note, at_most=at_most
    )


def modify(
    proposal_id: UUID | str, *, actor: User, seen_digest: str, payload: dict[str, Any], note: str = ""
) -> Decision | Approval:
    """Grant something else, usually less than was asked. Raises as `approve`, and BadAsk for the payload."""
    if not isinstance(payload, dict):
        raise BadAsk("The payload must be a JSON object with the keys of the proposal's payload.")
    return _grant(proposal_id, Status.MODIFIED, payload, actor=actor, seen_digest=seen_digest, note=note)


def reject(
    proposal_id: UUID | str, *, actor: User, seen_digest: str, note: str, stop_asking: bool = False
) -> Decision:
    """Refuse, with a reason that the agent reads. Raises as `approve`, and MissingReason.

    With `stop_asking`, the same ask of this bottle gets this answer at once, until an operator lifts it.
    """
    _check_permission(actor)
    if not note.strip():
        raise MissingReason("Say why: the agent reads the reason and acts on it.")
    proposal = _find(proposal_id)
    findings = find_facts([proposal], again=True)
    with transaction.atomic():
        version = _lock(proposal)
        _check_assignment(actor, proposal.bottle)
        _as_seen(review(proposal, version, findings=findings), seen_digest)
        decision = _record(proposal, Status.REJECTED, actor=actor, notes=note, seen_digest=seen_digest)
        if stop_asking:
            standing_refusals.stand(decision)
        return decision


def withdraw(proposal_id: UUID | str, *, bottle: Bottle) -> Decision:
    """Take an ask back, for the agent that filed it.

    Raises NoSuchProposal (also for another bottle's), AlreadyDecided, and NoRoom while the disk is short.
    """
    submit.check_room()
    proposal = _find(proposal_id, bottle=bottle)
    with transaction.atomic():
        _lock(proposal)
        return _record(proposal, Status.WITHDRAWN, actor_name=f"bottle {bottle.slug}", notes="")


def expire(proposal_id: UUID | str, *, reason: str) -> Decision:
    """End a proposal that nobody decided in time, or whose bottle is gone."""
    proposal = _find(proposal_id)
    with transaction.atomic():
        _lock(proposal)
        return _record(proposal, Status.EXPIRED, actor_name="bot-bottle", notes=reason)


def _grant(
    proposal_id: UUID | str,
    status: str,
    payload: dict[str, Any] | None,
    *,
    actor: User,
    seen_digest: str,
    note: str,
    at_most: Level = Level.HIGH,
) -> Decision | Approval:
    _check_permission(actor)
    proposal = _find(proposal_id)
    findings = find_facts([proposal], again=True)  # may take a while, so before any row is locked
    with transaction.atomic():
        version = _lock(proposal)
        _check_assignment(actor, proposal.bottle)
        now = timezone.now()
        edited = None if payload is None else checked_payload(proposal, payload)
        final = edited or proposal.payload
        seen = _as_seen(review(proposal, version, now=now, edited=edited, findings=findings), seen_digest)
        if seen.risk.level > at_most:
            raise TooRisky(f"It is {seen.risk.level.word} risk: decide it on its own page.")
        # The risk of what would be granted: an operator's edit can add a credential, or drop one.
        if quorum.needs_several(seen.risk.level):
            vote = _vote(proposal, actor, vote_digest(status, seen_digest, final), note)
            if not quorum.is_complete(vote):
                return vote
        author = actor.get_username()
        if proposal.filed_by:  # by an operator: the only way past a standing refusal
            standing_refusals.supersede(proposal, author)
        changes = kind_of(proposal).change(
            proposal, final, version, author=author, now=now, by_operator=edited is not None
        )
        return _record(
            proposal, status, actor=actor, notes=note, seen_digest=seen_digest, final_payload=final, **changes
        )


def _record(
    proposal: Proposal,
    status: str,
    *,
    actor: User | None = None,
    actor_name: str = "",
    notes: str,
    **columns: Any,
) -> Decision:
    """Claim the row, then write the decision and its audit row. The claim is what makes it exactly once."""
    claimed = Proposal.objects.filter(pk=proposal.pk, status=Status.PENDING, digest=proposal.digest)
    if claimed.update(status=status) != 1:
        raise AlreadyDecided(Decision.objects.get(proposal=proposal))
    proposal.status = status
    columns.setdefault("applied", Decision.Applied.NOTHING)
    decision = Decision.objects.create(
        proposal=proposal,
        bottle=proposal.bottle,
        tool=proposal.tool,
        status=status,
        actor=actor,
        actor_name=actor.get_username() if actor else actor_name,
        notes=without_nul(notes).strip(),
        **columns,
    )
    audit.append(
        status,
        actor_name=decision.actor_name,
        bottle_slug=proposal.bottle.slug,
        proposal_id=proposal.pk,
        details=audit.details_of(decision),
    )
    # Lambdas: Django's handling of a failing robust callback needs its __qualname__.
    if decision.applied == Decision.Applied.WAITING:
        kind = kind_of(proposal)
        kind.enqueue(decision)
        events.announce("decided", proposal, wake=False)  # the call keeps waiting until it is live
        transaction.on_commit(lambda: kind.apply(decision), robust=True)
    else:
        outcome = outcome_of(proposal, decision)
        transaction.on_commit(lambda: hub.notify(outcome), robust=True)
        events.announce("decided", proposal)
    return decision


def _find(proposal_id: UUID | str, *, bottle: Bottle | None = None) -> Proposal:
    """The proposal and its bottle. The ask never changes; `_lock` reads the status.

    For a bottle, another bottle's proposal does not exist, decided or not.
    """
    proposals = Proposal.objects.select_related("bottle")
    if bottle is not None:
        proposals = proposals.filter(bottle=bottle)
    try:
        return proposals.get(pk=proposal_id)
    except (Proposal.DoesNotExist, ValidationError):
        raise NoSuchProposal(f"There is no proposal {str(proposal_id)[:64]!r} here.") from None


def _lock(proposal: Proposal) -> RouteTableVersion:
    """Lock the bottle's newest table against other deciders until commit, and read the bottle again with it.

    Raises AlreadyDecided.
    """
    status = Proposal.objects.filter(pk=proposal.pk).values("status")
    version = versions.lock(proposal.bottle, proposal_status=Subquery(status))
    proposal.bottle, proposal.status = version.bottle, getattr(version, "proposal_status")  # noqa: B009
    if not proposal.is_pending:
        raise AlreadyDecided(Decision.objects.get(proposal=proposal))
    return version


def _as_seen(present: Review, seen_digest: str) -> Review:
    if present.seen_digest != seen_digest:
        raise StaleReview("The proposal or its route changed since you looked. Look again.")
    return present


def _vote(proposal: Proposal, actor: User, granted_digest: str, note: str) -> Approval:
    """Record one approval. An operator has one: approving something else replaces the earlier one."""
    vote, _ = Approval.objects.update_or_create(
        proposal=proposal, actor=actor, defaults={"granted_digest": granted_digest}
    )
    audit.append(
        "approval",
        actor_name=actor.get_username(),
        bottle_slug=proposal.bottle.slug,
        proposal_id=proposal.pk,
        details={
            "granted_digest": granted_digest,
            "needed": quorum.operators_needed(Level.HIGH),
            "notes": without_nul(note).strip(),
        },
    )
    events.announce("approval", proposal)
    return vote


def _check_permission(actor: User) -> None:
    if not may_decide(actor):
        raise NotPermitted("You can view proposals, but you need 'decide_proposal' to decide.")


def _check_assignment(actor: User, bottle: Bottle) -> None:
    if not may_decide_for(actor, bottle):
        raise NotPermitted(f"The bottle {bottle.slug} has operators of its own, and you are not one of them.")
