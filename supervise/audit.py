"""The hash-chained record. Every append happens inside the transaction of the change it records.

Sequence numbers have no gaps and follow commit order, so that readers may use them as a cursor.
`supervise.audit_check` verifies it.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db import connection
from django.utils import timezone

from supervise.digests import digest
from supervise.models import AuditEvent, AuditHead, Decision

NOTHING = "0" * 64  # the hash before the first row
# Each action that was ever recorded, by one index lookup for each.
_ACTIONS = """
WITH RECURSIVE found(action) AS (
    SELECT MIN(action) FROM supervise_auditevent
    UNION ALL
    SELECT (SELECT MIN(action) FROM supervise_auditevent WHERE action > found.action)
    FROM found WHERE found.action IS NOT NULL
)
SELECT action FROM found WHERE action IS NOT NULL
"""


def append(
    action: str,
    *,
    actor_name: str,
    bottle_slug: str = "",
    proposal_id: UUID | None = None,
    details: dict[str, Any] | None = None,
) -> AuditEvent:
    """Append one row. Locks the chain until the transaction ends, so append last."""
    if not connection.in_atomic_block:
        raise RuntimeError("An audit row belongs to the transaction of what it records.")
    event = AuditEvent(
        actor_name=actor_name,
        action=action,
        bottle_slug=bottle_slug,
        proposal_id=proposal_id,
        details=details or {},
    )
    # The row that this process wrote last is usually still the head, and then need not be read.
    if _written is None or not _link(event, *_written):
        head, _ = AuditHead.objects.select_for_update().get_or_create(pk=1)
        if not _link(event, head.seq, head.hash):
            raise RuntimeError("The head of the audit chain changed although it was locked.")
    return event


_written: tuple[int, str] | None = (
    None  # a guess: other processes append too, and transactions are rolled back
)


def _link(event: AuditEvent, seq: int, previous_hash: str) -> bool:
    """Append the event after this row. Returns False if that is not the head of the chain."""
    global _written  # noqa: PLW0603 - one for all threads, like the chain
    event.seq, event.at, event.previous_hash = seq + 1, timezone.now(), previous_hash
    event.hash = link_hash(event)
    is_head = AuditHead.objects.filter(pk=1, seq=seq, hash=previous_hash)
    if not is_head.update(seq=event.seq, hash=event.hash):
        return False
    event.save()
    _written = event.seq, event.hash
    return True


def link_hash(event: AuditEvent) -> str:
    return digest(
        [
            event.seq,
            event.at.isoformat(),
            event.actor_name,
            event.action,
            event.bottle_slug,
            str(event.proposal_id or ""),
            event.details,
            event.previous_hash,
        ]
    )


def details_of(decision: Decision) -> dict[str, Any]:
    """The details of a decision in the record. `row` is the digest of all of it, except the progress of
    applying it.
    """
    version = decision.table_version and decision.table_version.version
    stated = {
        "digest": decision.proposal.digest,
        "seen_digest": decision.seen_digest,
        "notes": decision.notes,
        "final_payload": decision.final_payload,
        "table_version": version,
    }
    rest = [
        str(decision.proposal_id),
        decision.bottle.slug,
        decision.tool,
        decision.status,
        decision.actor_name,
        decision.granted,
        decision.not_granted,
        decision.created_at.isoformat(),
    ]
    return {**stated, "row": digest([stated, rest])}


def newest_seq() -> int:
    return head().seq


def actions() -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute(_ACTIONS)
        return [action for (action,) in cursor.fetchall()]


def head() -> AuditHead:
    return AuditHead.objects.filter(pk=1).first() or AuditHead(seq=0, hash=NOTHING)
