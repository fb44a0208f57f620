"""Standing refusals: an ask that was rejected with "stop asking" is answered with the earlier reason.

Made by `decisions.reject`, consulted by `submit`, lifted by an operator.
"""

from __future__ import annotations

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import F, QuerySet
from django.utils import timezone

from botbottle.models import Bottle
from egress.tables import versions
from supervise import audit, events
from supervise.access.permissions import may_decide_for
from supervise.errors import NoSuchProposal, NotPermitted
from supervise.models import Decision, Proposal, StandingRefusal


def standing() -> QuerySet[StandingRefusal]:
    """The refusals that still answer, newest first."""
    return StandingRefusal.objects.filter(lifted_at=None).exclude(bottle__state=Bottle.State.DELETED)


def stand(decision: Decision) -> StandingRefusal:
    """Call inside the transaction of the rejection, which holds the bottle's lock."""
    proposal = decision.proposal
    supersede(proposal, decision.actor_name)
    refusal = StandingRefusal.objects.create(
        decision=decision, bottle=proposal.bottle, ask_digest=proposal.ask_digest
    )
    _audit("stop asking", refusal, decision.actor_name)
    return refusal


def answer(bottle: Bottle, ask_digest: str) -> Proposal | None:
    """The proposal whose rejection answers this ask, if there is one. Repeats are counted, not recorded."""
    refusal = standing().filter(bottle=bottle, ask_digest=ask_digest).select_related("decision").first()
    if refusal is None:
        return None
    StandingRefusal.objects.filter(pk=refusal.pk).update(
        repeats=F("repeats") + 1, last_asked_at=timezone.now()
    )
    return Proposal.objects.select_related("bottle").get(pk=refusal.decision.proposal_id)


def lift(refusal_id: int, *, actor: User) -> StandingRefusal:
    """Let the ask make a card again. Raises NotPermitted, and NoSuchProposal when no refusal stands."""
    with transaction.atomic():
        refusal = standing().select_related("decision__proposal__bottle").filter(pk=refusal_id).first()
        if refusal is not None and not may_decide_for(actor, refusal.decision.proposal.bottle):
            raise NotPermitted(
                "You can view this, but only operators who may decide for this bottle can lift its refusals."
            )
        if refusal is not None:
            versions.lock(refusal.decision.proposal.bottle)  # as deciding does, and in the same order
        if refusal is None or not _claim(refusal, actor.get_username()):
            raise NoSuchProposal("This refusal was already lifted.")
        _audit("refusal lifted", refusal, actor.get_username())
        events.announce("lifted", refusal.decision.proposal, wake=False)
    return refusal


def supersede(proposal: Proposal, actor_name: str) -> None:
    """End an older refusal of the same ask. Call inside the transaction of the newer answer."""
    for refusal in standing().filter(bottle=proposal.bottle, ask_digest=proposal.ask_digest):
        if _claim(refusal, actor_name):
            _audit("refusal lifted", refusal, actor_name)


def _claim(refusal: StandingRefusal, name: str) -> bool:
    still = StandingRefusal.objects.filter(pk=refusal.pk, lifted_at=None)
    return still.update(lifted_at=timezone.now(), lifted_by=name) == 1


def _audit(action: str, refusal: StandingRefusal, actor_name: str) -> None:
    proposal = refusal.decision.proposal
    audit.append(
        action,
        actor_name=actor_name,
        bottle_slug=proposal.bottle.slug,
        proposal_id=proposal.pk,
        details={"ask_digest": refusal.ask_digest, "repeats": refusal.repeats},
    )
