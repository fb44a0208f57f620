"""The hash-chained record. Every append happens inside the transaction of the change it records.

Sequence numbers have no gaps and appear in commit order, so that readers may use them as a cursor.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db import connection
from django.utils import timezone

from .canonical import digest
from .models import AuditEvent, AuditHead


@dataclass(frozen=True, slots=True)
class Break:
    """The first place where the chain does not hold."""

    seq: int
    problem: str


def append(
    action: str,
    *,
    actor_name: str,
    bottle_slug: str = "",
    proposal_id: UUID | None = None,
    details: dict[str, Any] | None = None,
) -> AuditEvent:
    """Add one link. Takes the chain's lock until the transaction ends: append last."""
    if not connection.in_atomic_block:
        raise RuntimeError("An audit row belongs to the transaction of what it records.")
    AuditHead.objects.get_or_create(pk=1)
    head = AuditHead.objects.select_for_update().get(pk=1)
    event = AuditEvent(
        seq=head.seq + 1,
        at=timezone.now(),
        actor_name=actor_name,
        action=action,
        bottle_slug=bottle_slug,
        proposal_id=proposal_id,
        details=details or {},
        previous_hash=head.hash,
    )
    event.hash = link_hash(event)
    event.save()
    AuditHead.objects.filter(pk=1).update(seq=event.seq, hash=event.hash)
    return event


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


def newest_seq() -> int:
    return AuditHead.objects.filter(pk=1).values_list("seq", flat=True).first() or 0


def verify() -> tuple[int, Break | None]:
    """Walk the chain: how many links hold, and the first that does not."""
    expected_seq, previous = 1, "0" * 64
    for event in _oldest_first():
        if event.seq != expected_seq:
            return expected_seq - 1, Break(expected_seq, f"row {expected_seq} is missing")
        if event.previous_hash != previous or event.hash != link_hash(event):
            return expected_seq - 1, Break(event.seq, f"row {event.seq} was changed")
        expected_seq, previous = event.seq + 1, event.hash
    head = AuditHead.objects.filter(pk=1).first()
    if head is not None and (head.seq, head.hash) != (expected_seq - 1, previous):
        return expected_seq - 1, Break(head.seq, f"rows after {expected_seq - 1} were removed")
    return expected_seq - 1, None


def _oldest_first() -> Iterator[AuditEvent]:
    return AuditEvent.objects.order_by("seq").iterator(chunk_size=2000)
