"""Snooze a card: hide it for a while, for everyone. The proposal stays pending and its call keeps waiting."""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import UUID

from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils import timezone

from egress.tables import versions
from supervise import audit, events
from supervise.access.permissions import may_decide_for
from supervise.errors import AlreadyDecided, BadAsk, NoSuchProposal, NotPermitted
from supervise.models import Decision, Proposal

LONGEST = timedelta(days=7)
MORNING = 8  # the hour at which "tomorrow" begins


def snooze(proposal_id: UUID | str, *, actor: User, until: datetime) -> Proposal:
    """Hide the card until then. Raises NotPermitted, NoSuchProposal, AlreadyDecided, BadAsk."""
    if not timezone.now() < until <= timezone.now() + LONGEST:
        raise BadAsk(f"A card can be snoozed for at most {LONGEST.days} days.")
    return _set(proposal_id, actor, until)


def wake(proposal_id: UUID | str, *, actor: User) -> Proposal:
    """Put the card back into the queue. Raises as `snooze`."""
    return _set(proposal_id, actor, None)


def tomorrow(now: datetime, *, utc_offset: timedelta = timedelta()) -> datetime:
    """The next morning, where the local time has this offset from UTC."""
    local = now + utc_offset
    morning = (local + timedelta(days=1)).replace(hour=MORNING, minute=0, second=0, microsecond=0)
    return morning - utc_offset


def _set(proposal_id: UUID | str, actor: User, until: datetime | None) -> Proposal:
    try:
        proposal = Proposal.objects.select_related("bottle").get(pk=proposal_id)
    except (Proposal.DoesNotExist, ValidationError):
        raise NoSuchProposal(f"There is no proposal {str(proposal_id)[:64]!r} here.") from None
    if not may_decide_for(actor, proposal.bottle):
        raise NotPermitted(
            "You can view this card, but only operators who may decide for this bottle can snooze it."
        )
    name = actor.get_username()
    with transaction.atomic():
        versions.lock(proposal.bottle)  # as deciding does, and in the same order
        pending = Proposal.objects.filter(pk=proposal.pk, status=Proposal.Status.PENDING)
        if pending.update(snoozed_until=until, snoozed_by=name if until else "") != 1:
            raise AlreadyDecided(Decision.objects.get(proposal=proposal))
        audit.append(
            "snoozed" if until else "woken",
            actor_name=name,
            bottle_slug=proposal.bottle.slug,
            proposal_id=proposal.pk,
            details={"until": until.isoformat() if until else None},
        )
        events.announce("snoozed" if until else "woken", proposal, wake=False)
    proposal.snoozed_until, proposal.snoozed_by = until, name if until else ""
    return proposal
