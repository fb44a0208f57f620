"""Verifies the audit record: its chain of hashes, and that the decisions still match it.

An anchor says how far the record was intact. It is stored in the home, outside of the database.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from django.conf import settings

from botbottle.core.files import write_atomically
from supervise import audit
from supervise.models import AuditEvent, AuditHead, Decision, Proposal

ROWS_AT_ONCE = 2000
DECIDED = frozenset(Proposal.Status.values) - {Proposal.Status.PENDING}


@dataclass(frozen=True, slots=True)
class Break:
    """The first row where the record is broken."""

    seq: int
    problem: str


@dataclass(frozen=True, slots=True)
class Anchor:
    """The last intact row, its hash, and the number of decisions up to it."""

    seq: int
    hash: str
    decisions: int


START = Anchor(0, audit.NOTHING, 0)


def verify(after: Anchor = START, *, known: Anchor = START) -> tuple[Anchor, Break | None]:
    """Walk the record from `after`; return how far it is intact, and the first break.

    The row of `known`, an earlier anchor, must still have its hash. Rows may be appended meanwhile: what the
    head says before the walk must exist, and what the walk finds must be known to the head after it.
    """
    if after.seq and not _is_there(after):
        return START, Break(after.seq, f"row {after.seq} is no longer the one that was verified")
    promised, decisions, intact = audit.head(), Decision.objects.count(), after
    for rows in _batches(after.seq):
        changed = _changed_decisions(rows)
        for event in rows:
            problem = _problem(event, intact) or _rewritten(event, promised, known) or changed.get(event.seq)
            if problem:
                return intact, Break(intact.seq + 1, problem)
            intact = Anchor(event.seq, event.hash, intact.decisions + (event.action in DECIDED))
    return intact, _end(intact, max(promised.seq, known.seq), decisions)


def saved_anchor() -> Anchor:
    """The anchor of the last check without a fault; START if there is none, or its file is damaged."""
    try:
        return Anchor(**json.loads(_file().read_text()))
    except (OSError, ValueError, TypeError):
        return START


def save_anchor(anchor: Anchor) -> None:
    """Raises OSError."""
    write_atomically(_file(), json.dumps(asdict(anchor)) + "\n")


def _file() -> Path:
    return Path(settings.BOTTLE_HOME) / "audit_anchor.json"


def _batches(seq: int) -> Iterator[list[AuditEvent]]:
    while rows := list(AuditEvent.objects.filter(seq__gt=seq).order_by("seq")[:ROWS_AT_ONCE]):
        seq = rows[-1].seq
        yield rows


def _is_there(anchor: Anchor) -> bool:
    event = AuditEvent.objects.filter(seq=anchor.seq).first()
    return event is not None and anchor.hash == event.hash == audit.link_hash(event)


def _problem(event: AuditEvent, intact: Anchor) -> str:
    if event.seq != intact.seq + 1:
        return f"row {intact.seq + 1} is missing"
    if event.previous_hash != intact.hash or event.hash != audit.link_hash(event):
        return f"row {event.seq} was changed"
    return ""


def _rewritten(event: AuditEvent, *known: AuditHead | Anchor) -> str:
    """Whether a row that fits its neighbours is still the one that was there."""
    if any(event.seq == one.seq and event.hash != one.hash for one in known):
        return f"row {event.seq} was rewritten"
    return ""


def _changed_decisions(rows: list[AuditEvent]) -> dict[int, str]:
    """What is wrong with the decisions that these rows record, by the row's number."""
    deciding = {event.proposal_id: event for event in rows if event.action in DECIDED and event.proposal_id}
    found = (
        Decision.objects.filter(proposal__in=deciding)
        .select_related("proposal", "bottle", "table_version")
        .defer(
            "proposal__payload", "proposal__justification", "bottle__dockerfile", "bottle__manifest",
            "table_version__content",
        )
        .order_by()
    )  # fmt: skip
    decisions = {decision.proposal_id: decision for decision in found}
    wrong = {event.seq: _wrong(event, decisions.get(pk)) for pk, event in deciding.items()}
    return {seq: f"the decision of row {seq} {what}" for seq, what in wrong.items() if what}


def _wrong(event: AuditEvent, decision: Decision | None) -> str:
    if decision is None:
        return "is missing"
    present = audit.details_of(decision)
    present_names = (decision.status, decision.proposal.status, decision.actor_name, decision.bottle.slug)
    is_named = present_names == (event.action, event.action, event.actor_name, event.bottle_slug)
    # Rows of earlier versions have fewer details.
    is_same = all(present.get(key) == value for key, value in event.details.items())
    return "" if is_named and is_same else "was changed"


def _end(intact: Anchor, promised: int, decisions: int) -> Break | None:
    if intact.seq < promised:
        return Break(intact.seq + 1, f"the rows after {intact.seq} were removed")
    if intact.seq > audit.head().seq:
        return Break(intact.seq, "the chain's head was removed or set back")
    if intact.decisions < decisions:
        return Break(intact.seq, "there are decisions that are not in the record")
    return None
