"""The hash-chained record. Every append happens inside the transaction of the change it records.

Sequence numbers have no gaps and appear in commit order, so that readers may use them as a cursor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db import connection
from django.utils import timezone

from .canonical import digest
from .models import AuditEvent, AuditHead

_NOTHING = "0" * 64  # what the first link follows


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
    event = AuditEvent(
        actor_name=actor_name,
        action=action,
        bottle_slug=bottle_slug,
        proposal_id=proposal_id,
        details=details or {},
    )
    # What this process wrote last is usually still the head. Whoever remembers it need not read it.
    if _written is None or not _link(event, *_written):
        head, _ = AuditHead.objects.select_for_update().get_or_create(pk=1)
        if not _link(event, head.seq, head.hash):
            raise RuntimeError("The head of the audit chain changed although it was locked.")
    return event


_written: tuple[int, str] | None = None  # a guess: others append too, and transactions are rolled back


def _link(event: AuditEvent, seq: int, previous_hash: str) -> bool:
    """Append the event after this one; False when that is not the head of the chain."""
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


def newest_seq() -> int:
    return _head().seq


def verify() -> tuple[int, Break | None]:
    """Walk the chain: how many links hold, and the first that does not.

    Rows may be appended meanwhile: what the head said before the walk must be there, and what the walk found
    must be known to the head after it.
    """
    promised = _head()
    intact, previous = 0, _NOTHING
    for event in AuditEvent.objects.order_by("seq").iterator(chunk_size=2000):
        if event.seq != intact + 1:
            return intact, Break(intact + 1, f"row {intact + 1} is missing")
        if event.previous_hash != previous or event.hash != link_hash(event):
            return intact, Break(event.seq, f"row {event.seq} was changed")
        if event.seq == promised.seq and event.hash != promised.hash:
            return intact, Break(event.seq, f"row {event.seq} was rewritten")
        intact, previous = event.seq, event.hash
    if intact < promised.seq:
        return intact, Break(intact + 1, f"the rows after {intact} were removed")
    if intact > _head().seq:
        return intact, Break(intact, "the chain's head was removed or set back")
    return intact, None


def _head() -> AuditHead:
    return AuditHead.objects.filter(pk=1).first() or AuditHead(seq=0, hash=_NOTHING)
