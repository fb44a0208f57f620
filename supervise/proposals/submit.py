"""Submit an ask: equal asks share one pending card, within the bottle's limits.

An ask that an operator refused for good does not make a card: it gets the earlier decision.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import uuid4

from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import F, QuerySet
from django.utils import timezone

from botbottle.core.sanitize import without_nul, without_nul_json
from botbottle.database import reserve
from botbottle.models import Bottle
from egress.tables import versions
from supervise import audit, events
from supervise.digests import ask_digest, digest
from supervise.errors import AskedTooOften, BadAsk, NoRoom, TooManyPending
from supervise.models import Proposal
from supervise.proposals import standing_refusals
from supervise.proposals.review import review

NO_ROOM = (
    "The disk of the operator's machine is full: nothing was queued, and nothing was changed. The operator "
    "is told. Go on with what needs no approval, and try again in a few minutes."
)


@dataclass(frozen=True, slots=True)
class Filed:
    """`proposal` may be an earlier one: pending and joined, or refused for good."""

    proposal: Proposal
    joined: bool


def submit_proposal(
    bottle: Bottle, tool: str, payload: dict[str, Any], justification: str, *, operator: str = ""
) -> Filed:
    """Queue an ask that was already checked, or join an equal pending one.

    With `operator`, that operator files it for the bottle, whatever was refused or asked too often before.

    Raises TooManyPending, AskedTooOften, NoRoom, or BadAsk when the bottle was deleted; then nothing was
    queued.
    """
    if not operator:
        check_room()
    payload = without_nul_json(payload)
    key = ask_digest(tool, payload)
    equal = Proposal.objects.filter(bottle=bottle, ask_digest=key)
    for _ in range(3):  # each round loses only to a decision or an equal ask made in the same instant
        proposal = _join(equal.filter(status=Proposal.Status.PENDING))
        if proposal is not None:
            events.announce("joined", proposal, wake=False)  # nothing was decided
            return Filed(proposal, joined=True)
        try:
            return _insert(bottle, tool, payload, justification, key, operator=operator)
        except IntegrityError:
            continue
    raise AskedTooOften("This ask was filed and decided several times in one instant. Ask again.")


def _join(pending: QuerySet[Proposal]) -> Proposal | None:
    """Join the equal ask that is pending. Usually there is none, and then nothing is written."""
    if pending.exists() and pending.update(joined=F("joined") + 1, asked_at=timezone.now()):
        return pending.select_related("bottle").first()
    return None


def _insert(
    bottle: Bottle, tool: str, payload: dict[str, Any], justification: str, key: str, *, operator: str
) -> Filed:
    # Before the lock: reviewing a long ask must not delay others. The queue only sorts by this level.
    asked = Proposal(bottle=bottle, tool=tool, payload=payload)
    risk_when_filed = review(asked, versions.current(bottle)).risk.level
    with transaction.atomic():
        # Locked, so that two calls at once cannot pass a limit or the end of the bottle.
        version = versions.lock(bottle)
        if version.bottle.state == Bottle.State.DELETED:
            raise BadAsk("This bottle was deleted. Stop here: nobody will decide for it any more.")
        if not operator:
            refused = standing_refusals.answer(bottle, key)
            if refused is not None:
                return Filed(refused, joined=True)
            _check_limits(bottle)
        proposal = Proposal(
            id=uuid4(),
            bottle=bottle,
            tool=tool,
            payload=payload,
            justification=without_nul(justification),
            ask_digest=key,
            base_version=version.version,
            filed_by=operator,
            risk_when_filed=risk_when_filed,
        )
        proposal.digest = digest(
            [str(proposal.id), bottle.slug, tool, payload, proposal.justification, proposal.base_version]
        )
        proposal.save(force_insert=True)
        audit.append(
            "filed for the bottle" if operator else "filed",
            actor_name=operator or f"bottle {bottle.slug}",
            bottle_slug=bottle.slug,
            proposal_id=proposal.id,
            details={"tool": tool, "digest": proposal.digest},
        )
        events.announce("filed", proposal, wake=False)
    return Filed(proposal, joined=False)


def check_room() -> None:
    """Before agents' asks are written. Raises NoRoom while the rest of the disk is kept for decisions."""
    if reserve.is_needed():
        raise NoRoom(NO_ROOM)


def _check_limits(bottle: Bottle) -> None:
    mine = Proposal.objects.filter(bottle=bottle)
    if mine.filter(status=Proposal.Status.PENDING).count() >= settings.SUPERVISE_MAX_PENDING:
        raise TooManyPending(
            f"This bottle already has {settings.SUPERVISE_MAX_PENDING} open proposals. "
            "Wait for decisions, or take some back with withdraw-proposal."
        )
    minute_ago = timezone.now() - timedelta(minutes=1)
    if mine.filter(created_at__gte=minute_ago).count() >= settings.SUPERVISE_MAX_PER_MINUTE:
        raise AskedTooOften("This bottle asks too often. Wait a minute, then ask for what you need most.")
