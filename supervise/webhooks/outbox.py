"""Turns the audit record into messages for receivers.

The record is written in the transaction of the change, without gaps and in commit order: reading it by number
loses nothing, and delays no submission or decision.
"""

from __future__ import annotations

from typing import Any

from django.db import transaction
from django.utils import timezone

from supervise import audit
from supervise.models import AuditEvent, Decision, Delivery, Proposal, Webhook
from supervise.proposals import queries
from supervise.proposals.risk import Level

Event = Webhook.Event
ROWS_AT_ONCE = 500
_ENDINGS = {"bottle stopped": "stopped", "bottle not started": "did not start"}
_EVENTS: dict[str, str] = {
    "filed": Event.FILED,
    "filed for the bottle": Event.FILED,
    Decision.Applied.FAILED: Event.NOT_LIVE,
    **dict.fromkeys(_ENDINGS, Event.STOPPED),
    **{status: Event.DECIDED for status in Proposal.Status.values if status != Proposal.Status.PENDING},
}


def spool() -> None:
    """Write the deliveries for every audit row since the last round."""
    receivers = list(Webhook.objects.filter(is_active=True).values_list("pk", "read_seq"))
    newest = audit.newest_seq() if receivers else 0
    for pk, read in receivers:
        if read < newest:
            while _spool_some(pk, newest) < newest:
                pass


def facts_of_test() -> dict[str, Any]:
    return {"event": Event.TEST, "at": timezone.now().isoformat(), "pending": queries.counts()["pending"]}


def _spool_some(pk: int, newest: int) -> int:
    """Write some deliveries; returns the last row that was read. The receiver's row is locked, so that no
    delivery is written twice.
    """
    with transaction.atomic():
        webhook = Webhook.objects.select_for_update().filter(pk=pk, is_active=True).first()
        if webhook is None:
            return newest
        rows = AuditEvent.objects.filter(seq__gt=webhook.read_seq).order_by("seq").defer("details")
        some = list(rows[:ROWS_AT_ONCE])
        if not some:
            return newest
        Delivery.objects.bulk_create(_deliveries(webhook, some), ignore_conflicts=True)
        Webhook.objects.filter(pk=pk).update(read_seq=some[-1].seq)
        return some[-1].seq


def _deliveries(webhook: Webhook, rows: list[AuditEvent]) -> list[Delivery]:
    ids = {row.proposal_id for row in rows if row.action in _EVENTS and row.proposal_id}
    proposals = Proposal.objects.defer("justification").in_bulk(ids)
    counted: dict[str, int] = {}
    made, now = [], timezone.now()
    for row in rows:
        proposal = proposals.get(row.proposal_id) if row.proposal_id else None
        event = _EVENTS.get(row.action, "")
        if not _is_wanted(webhook, event, proposal):
            continue
        counted = counted or queries.counts()
        facts = _facts(row, event, proposal) | {"pending": counted["pending"]}
        made.append(Delivery(webhook=webhook, event=event, seq=row.seq, facts=facts, next_attempt_at=now))
    return made


def _is_wanted(webhook: Webhook, event: str, proposal: Proposal | None) -> bool:
    if not event or (proposal is None and event != Event.STOPPED):
        return False
    is_high = proposal is not None and proposal.risk_when_filed >= Level.HIGH
    return event in webhook.events or (event == Event.FILED and is_high and Event.HIGH_RISK in webhook.events)


def _facts(row: AuditEvent, event: str, proposal: Proposal | None) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "event": event, "seq": row.seq, "at": row.at.isoformat(), "bottle": row.bottle_slug
    }  # fmt: skip
    if proposal is not None:
        facts |= {
            "proposal": str(proposal.pk),
            "tool": proposal.tool,
            "risk": Level(proposal.risk_when_filed).word,
            "host": proposal.payload.get("host"),
        }
    if event == Event.DECIDED:
        facts |= {"decision": row.action, "by": row.actor_name}
    if event == Event.STOPPED:
        facts |= {"what": _ENDINGS[row.action], "exit_code": row.details.get("exit_code")}
    return facts
