"""The only place that changes a proposal's status.

Each verb checks permission, claims the row, writes decision, table version and audit row in one transaction,
and on commit applies the change and wakes whoever waits. Exactly one caller wins.
"""

from __future__ import annotations

from functools import partial
from typing import Any
from uuid import UUID

from django.conf import settings
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.db import transaction

from botbottle.models import Bottle
from egress import store
from egress.models import RouteTableVersion

from . import applying, audit, events
from .canonical import digest
from .errors import AlreadyDecided, BadAsk, MissingReason, NoSuchProposal, NotPermitted, StaleReview
from .models import Approval, Decision, Proposal
from .outcomes import left_out
from .reviewing import checked_payload, preview, review
from .risk import Level
from .sanitize import storable

Status = Proposal.Status
PERMISSION = "supervise.decide_proposal"


def approve(
    proposal_id: UUID | str, *, actor: User, seen_digest: str, note: str = ""
) -> Decision | Approval:
    """Grant what was asked. An Approval instead of a Decision means: more operators must say yes.

    Raises NotPermitted, NoSuchProposal, AlreadyDecided, StaleReview.
    """
    return _grant(proposal_id, Status.APPROVED, None, actor=actor, seen_digest=seen_digest, note=note)


def modify(
    proposal_id: UUID | str, *, actor: User, seen_digest: str, payload: dict[str, Any], note: str = ""
) -> Decision | Approval:
    """Grant something else than was asked, usually less. Raises as `approve`, and BadAsk for the payload."""
    return _grant(proposal_id, Status.MODIFIED, payload, actor=actor, seen_digest=seen_digest, note=note)


def reject(proposal_id: UUID | str, *, actor: User, seen_digest: str, note: str) -> Decision:
    """Refuse, with a reason that the agent reads. Raises as `approve`, and MissingReason."""
    _check_permission(actor)
    if not note.strip():
        raise MissingReason("Say why: the agent reads the reason and acts on it.")
    with transaction.atomic():
        proposal, version = _lock(proposal_id)
        if review(proposal, version).seen_digest != seen_digest:
            raise StaleReview("The proposal or its route changed since you looked. Look again.")
        return _record(proposal, Status.REJECTED, actor=actor, notes=note, seen_digest=seen_digest)


def withdraw(proposal_id: UUID | str, *, bottle: Bottle) -> Decision:
    """The agent takes its own ask back. Raises NoSuchProposal (also for another bottle's), AlreadyDecided."""
    with transaction.atomic():
        proposal, _ = _lock(proposal_id)
        if proposal.bottle_id != bottle.pk:
            raise _unknown(proposal_id)
        return _record(proposal, Status.WITHDRAWN, actor_name=f"bottle {bottle.slug}", notes="")


def expire(proposal_id: UUID | str, *, reason: str) -> Decision:
    """Time, or the bottle, ran out before anybody decided."""
    with transaction.atomic():
        proposal, _ = _lock(proposal_id)
        return _record(proposal, Status.EXPIRED, actor_name="bot-bottle", notes=reason)


def _grant(
    proposal_id: UUID | str,
    status: str,
    payload: dict[str, Any] | None,
    *,
    actor: User,
    seen_digest: str,
    note: str,
) -> Decision | Approval:
    _check_permission(actor)
    with transaction.atomic():
        proposal, version = _lock(proposal_id)
        final = proposal.payload if payload is None else _checked(proposal, payload)
        seen = review(proposal, version)
        if seen.seen_digest != seen_digest:
            raise StaleReview("The proposal or its route changed since you looked. Look again.")
        if seen.risk.level is Level.HIGH and settings.SUPERVISE_QUORUM > 1:
            vote = _vote(proposal, actor, digest([seen_digest, final]))
            if vote is not None:
                return vote
        changes = _change(proposal, final, version, actor, by_operator=payload is not None)
        return _record(
            proposal, status, actor=actor, notes=note, seen_digest=seen_digest, final_payload=final, **changes
        )


def _change(
    proposal: Proposal, final: dict[str, Any], version: RouteTableVersion, actor: User, *, by_operator: bool
) -> dict[str, Any]:
    """Make the change in the database and say what it grants. Applying it comes after the commit."""
    if proposal.tool == Proposal.Tool.CAPABILITY:
        Bottle.objects.filter(pk=proposal.bottle_id).update(dockerfile=final["dockerfile"])
        not_granted = left_out(proposal.payload, final)
        return {"granted": final, "not_granted": not_granted, "applied": Decision.Applied.RECORDED}
    merged = preview(proposal, final, version.table, by_operator=by_operator)
    if merged.changed:
        version = store.append(
            version, merged.table, author=actor.get_username(), cause=f"proposal {proposal.pk}"
        )
    return {
        "granted": merged.granted,
        "not_granted": left_out(proposal.payload, final, ignored=merged.ignored),
        "table_version": version,
        "applied": Decision.Applied.WAITING,
    }


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
        status=status,
        actor=actor,
        actor_name=actor.get_username() if actor else actor_name,
        notes=storable(notes).strip(),
        **columns,
    )
    audit.append(
        status,
        actor_name=decision.actor_name,
        bottle_slug=proposal.bottle.slug,
        proposal_id=proposal.pk,
        details={
            "digest": proposal.digest,
            "seen_digest": decision.seen_digest,
            "notes": decision.notes,
            "final_payload": decision.final_payload,
            "table_version": decision.table_version and decision.table_version.version,
        },
    )
    events.announce("decided", proposal)
    if decision.applied == Decision.Applied.WAITING:
        transaction.on_commit(partial(applying.apply, decision.pk), robust=True)
    return decision


def _lock(proposal_id: UUID | str) -> tuple[Proposal, RouteTableVersion]:
    """The pending proposal and its bottle's newest table, held against other deciders until commit."""
    try:
        proposal = Proposal.objects.select_related("bottle").get(pk=proposal_id)
    except (Proposal.DoesNotExist, ValidationError):
        raise _unknown(proposal_id) from None
    version = store.lock(proposal.bottle)
    proposal = Proposal.objects.select_related("bottle").get(pk=proposal_id)
    if not proposal.is_pending:
        raise AlreadyDecided(Decision.objects.get(proposal=proposal))
    return proposal, version


def _vote(proposal: Proposal, actor: User, granted_digest: str) -> Approval | None:
    """Record one yes. None when it completes the quorum; a yes to anything else than this does not count."""
    vote, _ = Approval.objects.update_or_create(
        proposal=proposal, actor=actor, defaults={"granted_digest": granted_digest}
    )
    agreeing = Approval.objects.filter(proposal=proposal, granted_digest=granted_digest)
    if agreeing.count() >= settings.SUPERVISE_QUORUM:
        return None
    audit.append(
        "approval",
        actor_name=actor.get_username(),
        bottle_slug=proposal.bottle.slug,
        proposal_id=proposal.pk,
        details={"granted_digest": granted_digest, "needed": settings.SUPERVISE_QUORUM},
    )
    events.announce("approval", proposal)
    return vote


def _checked(proposal: Proposal, payload: dict[str, Any]) -> dict[str, Any]:
    try:
        return checked_payload(proposal, payload)
    except ValueError as error:
        raise BadAsk(str(error)) from error


def _check_permission(actor: User) -> None:
    if not (actor.is_active and actor.has_perm(PERMISSION)):
        raise NotPermitted("You may look, but deciding needs the permission 'decide_proposal'.")


def _unknown(proposal_id: object) -> NoSuchProposal:
    return NoSuchProposal(f"There is no proposal {str(proposal_id)[:64]!r} here.")
