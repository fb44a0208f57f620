"""The hash chain and the decisions it tells of: complete, in order, and broken by changes behind its back."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import IntegrityError, connection, transaction

from botbottle.models import Bottle
from supervise import audit, audit_check
from supervise.audit_check import Anchor, Break
from supervise.models import AuditEvent, AuditHead, Decision, Proposal
from supervise.proposals import decisions
from tests.support.database_reset import without_triggers
from tests.support.proposals import ask, seen
from tests.support.threads import together


@pytest.fixture
def chain(db: None) -> list[AuditEvent]:
    with transaction.atomic():
        return [
            audit.append(f"step {number}", actor_name="tests", details={"n": [number, "é\u202e", None, 1.5]})
            for number in range(1, 6)
        ]


def verify(*given: Anchor, **more: Anchor) -> tuple[int, Break | None]:
    intact, broken = audit_check.verify(*given, **more)
    return intact.seq, broken


def test_an_untouched_chain_holds(chain: list[AuditEvent]) -> None:
    assert verify() == (5, None)
    assert audit.newest_seq() == 5


def test_an_empty_chain_holds(db: None) -> None:
    assert verify() == (0, None)
    assert audit.newest_seq() == 0


def _sql(statement: str) -> None:
    """As somebody who owns the database: without triggers."""
    with transaction.atomic(), connection.cursor() as cursor, without_triggers(cursor):
        cursor.execute(statement)


EVENTS, HEAD = AuditEvent._meta.db_table, AuditHead._meta.db_table


@pytest.mark.parametrize(
    ("statement", "intact", "problem"),
    [
        (f"UPDATE {EVENTS} SET actor_name = 'x' WHERE seq = 3", 2, "row 3 was changed"),
        (f"UPDATE {EVENTS} SET action = 'rejected' WHERE seq = 3", 2, "row 3 was changed"),
        (f"UPDATE {EVENTS} SET bottle_slug = 'x' WHERE seq = 1", 0, "row 1 was changed"),
        (f"UPDATE {EVENTS} SET details = '{{}}' WHERE seq = 5", 4, "row 5 was changed"),
        (f"UPDATE {EVENTS} SET at = '2020-01-01 00:00:00+00:00' WHERE seq = 2", 1, "row 2 was changed"),
        (f"UPDATE {EVENTS} SET hash = '{'0' * 64}' WHERE seq = 4", 3, "row 4 was changed"),
        (f"UPDATE {EVENTS} SET seq = 9 WHERE seq = 5", 4, "row 5 is missing"),
        (f"DELETE FROM {EVENTS} WHERE seq = 1", 0, "row 1 is missing"),
        (f"DELETE FROM {EVENTS} WHERE seq = 3", 2, "row 3 is missing"),
        (f"DELETE FROM {EVENTS} WHERE seq >= 4", 3, "the rows after 3 were removed"),
        (f"DELETE FROM {EVENTS}", 0, "the rows after 0 were removed"),
        (f"DELETE FROM {HEAD}", 5, "the chain's head was removed or set back"),
        (f"UPDATE {HEAD} SET seq = 3", 2, "row 3 was rewritten"),
        (f"UPDATE {HEAD} SET hash = '{'0' * 64}'", 4, "row 5 was rewritten"),
    ],
)
def test_it_finds_what_was_done_behind_its_back(
    chain: list[AuditEvent], statement: str, intact: int, problem: str
) -> None:
    _sql(statement)
    rows, broken = verify()
    assert broken is not None
    assert (rows, broken.problem) == (intact, problem)


def _rewrite(seq: int) -> None:
    """With a hash that fits the new content."""
    event = AuditEvent.objects.get(seq=seq)
    event.actor_name = "somebody else"
    rewritten = f"actor_name = 'somebody else', hash = '{audit.link_hash(event)}'"
    _sql(f"UPDATE {EVENTS} SET {rewritten} WHERE seq = {seq}")


def test_a_row_rewritten_with_a_fitting_hash_breaks_the_next_link(chain: list[AuditEvent]) -> None:
    _rewrite(3)
    rows, broken = verify()
    assert broken is not None
    assert (rows, broken.seq) == (3, 4)


def test_the_last_row_rewritten_with_a_fitting_hash_is_not_what_the_head_knows(
    chain: list[AuditEvent],
) -> None:
    _rewrite(5)
    assert verify()[1] == Break(5, "row 5 was rewritten")


@pytest.mark.parametrize("verb", ["UPDATE {} SET actor_name = 'x' WHERE seq = 3", "DELETE FROM {}"])
def test_the_database_refuses_to_change_or_remove_a_row(chain: list[AuditEvent], verb: str) -> None:
    with (
        pytest.raises(IntegrityError, match="append-only"),
        transaction.atomic(),
        connection.cursor() as cursor,
    ):
        cursor.execute(verb.format(EVENTS))
    with pytest.raises(IntegrityError, match="append-only"), transaction.atomic():
        AuditEvent.objects.filter(seq=3).update(actor_name="x")
    assert verify() == (5, None)


@pytest.mark.parametrize("change", [lambda event: event.save(), lambda event: event.delete()])
def test_the_models_refuse_to_change_a_row(
    chain: list[AuditEvent], change: Callable[[AuditEvent], Any]
) -> None:
    with pytest.raises(TypeError, match="append-only"):
        change(AuditEvent.objects.get(seq=3))


@pytest.mark.django_db(transaction=True)
def test_a_row_belongs_to_a_transaction() -> None:
    with pytest.raises(RuntimeError, match="transaction"):
        audit.append("alone", actor_name="tests")


@pytest.mark.django_db(transaction=True)
def test_what_is_rolled_back_leaves_no_gap() -> None:
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        audit.append("never", actor_name="tests")
        raise ZeroDivisionError
    _append("first")
    assert list(AuditEvent.objects.values_list("seq", "action")) == [(1, "first")]
    assert verify() == (1, None)


def _append(action: str) -> None:
    with transaction.atomic():
        audit.append(action, actor_name="tests")


@pytest.mark.django_db(transaction=True)
def test_appends_at_one_moment_make_one_chain_from_the_very_first_row() -> None:
    assert together([partial(_append, f"step {number}") for number in range(8)]) == [None] * 8
    assert verify() == (8, None)


@pytest.mark.django_db(transaction=True)
def test_verifying_while_others_append_raises_no_false_alarm() -> None:
    def append_many() -> None:
        for _ in range(30):
            _append("step")

    def verify_many() -> list[Any]:
        return [audit_check.verify()[1] for _ in range(30)]

    *_, alarms = together([append_many, append_many, verify_many])
    assert alarms == [None] * 30
    assert verify() == (60, None)


# --- The decisions that it tells of


@pytest.fixture
def decided(operator: User, agent_a: Bottle) -> list[Proposal]:
    """Rejected, approved, pending."""
    refused, granted, pending = (ask(agent_a, f"h{number}.example.com") for number in range(3))
    decisions.reject(refused.pk, actor=operator, seen_digest=seen(refused), note="No.")
    decisions.approve(granted.pk, actor=operator, seen_digest=seen(granted))
    return [refused, granted, pending]


def row_of(proposal: Proposal) -> int:
    return AuditEvent.objects.get(proposal_id=proposal.pk, action__in=audit_check.DECIDED).seq


@pytest.mark.parametrize(
    "change",
    [
        {"status": "approved"},
        {"notes": "Yes."},
        {"actor_name": "otto"},
        {"final_payload": {"host": "x.example.com"}},
        {"granted": {"host": "x.example.com"}},
        {"not_granted": {"methods": ["PUT"]}},
        {"seen_digest": "0" * 64},
        {"created_at": datetime(2020, 1, 1, tzinfo=UTC)},
        {"tool": "mcp-tool"},
    ],
)
def test_a_changed_decision_is_found(decided: list[Proposal], change: dict[str, Any]) -> None:
    assert verify()[1] is None
    Decision.objects.filter(proposal=decided[0]).update(**change)
    seq = row_of(decided[0])
    assert verify() == (seq - 1, Break(seq, f"the decision of row {seq} was changed"))


@pytest.mark.parametrize(
    ("model", "key", "change"),
    [(Decision, "proposal", {"table_version": None}), (Proposal, "pk", {"status": "pending"})],
)
def test_its_table_and_its_proposals_status_belong_to_it(
    decided: list[Proposal], model: Any, key: str, change: dict[str, Any]
) -> None:
    assert model.objects.filter(**{key: decided[1].pk}).update(**change) == 1
    seq = row_of(decided[1])
    assert verify()[1] == Break(seq, f"the decision of row {seq} was changed")


def test_a_row_of_an_earlier_version_vouches_for_what_it_tells(decided: list[Proposal]) -> None:
    event = AuditEvent.objects.get(seq=row_of(decided[0]))
    decision = Decision.objects.get(proposal=decided[0])
    assert set(event.details) - {"row"} == {
        "digest",
        "seen_digest",
        "notes",
        "final_payload",
        "table_version",
    }
    del event.details["row"]
    assert audit_check._wrong(event, decision) == ""
    decision.notes = "Yes."
    assert audit_check._wrong(event, decision) == "was changed"


def test_how_far_applying_has_come_is_no_part_of_it(decided: list[Proposal]) -> None:
    Decision.objects.update(applied=Decision.Applied.FAILED, apply_error="disk full", actor=None)
    assert verify()[1] is None


def test_a_removed_decision_is_found(decided: list[Proposal]) -> None:
    seq = row_of(decided[0])
    Decision.objects.filter(proposal=decided[0]).delete()
    assert verify()[1] == Break(seq, f"the decision of row {seq} is missing")


def test_a_decision_that_was_slipped_in_is_found(decided: list[Proposal]) -> None:
    slipped_in = Decision.objects.get(proposal=decided[0])
    slipped_in.pk, slipped_in.proposal, slipped_in._state.adding = None, decided[2], True
    slipped_in.save()
    broken = verify()[1]
    assert broken is not None and broken.problem == "there are decisions that are not in the record"


# --- Anchors


def test_a_check_goes_on_from_an_anchor(chain: list[AuditEvent]) -> None:
    intact, _ = audit_check.verify()
    assert intact == Anchor(5, chain[-1].hash, 0)
    _append("step 6")
    _rewrite(2)
    assert verify(intact) == (6, None), "what is before the anchor is not looked at"
    assert verify()[1] is not None


@pytest.mark.parametrize(
    "statement", ["UPDATE {} SET action = 'x' WHERE seq = 5", "DELETE FROM {} WHERE seq = 5"]
)
def test_the_anchors_own_row_is_looked_at(chain: list[AuditEvent], statement: str) -> None:
    intact, _ = audit_check.verify()
    _sql(statement.format(EVENTS))
    assert verify(intact) == (0, Break(5, "row 5 is no longer the one that was verified"))


def test_a_record_that_was_rewritten_as_a_whole_is_known_by_its_anchor(chain: list[AuditEvent]) -> None:
    known, _ = audit_check.verify()
    for length, problem in ((5, "row 5 was rewritten"), (3, "the rows after 3 were removed")):
        _sql(f"DELETE FROM {EVENTS}")
        _sql(f"DELETE FROM {HEAD}")
        for number in range(length):
            _append(f"another step {number}")
        assert verify()[1] is None
        broken = verify(known=known)[1]
        assert broken is not None and broken.problem == problem


def test_an_anchor_knows_how_many_decisions_there_were(
    decided: list[Proposal], operator: User, agent_a: Bottle
) -> None:
    intact, _ = audit_check.verify()
    assert intact.decisions == 2
    proposal = ask(agent_a, "later.example.com")
    decisions.reject(proposal.pk, actor=operator, seen_digest=seen(proposal), note="No.")
    intact, broken = audit_check.verify(intact)
    assert (intact.decisions, broken) == (3, None)


def test_a_damaged_anchor_is_none(settings: Any, tmp_path: Path) -> None:
    settings.BOTTLE_HOME = tmp_path
    assert audit_check.saved_anchor() == audit_check.START
    audit_check.save_anchor(Anchor(7, "a" * 64, 3))
    file = tmp_path / "audit_anchor.json"
    assert audit_check.saved_anchor() == Anchor(7, "a" * 64, 3)
    assert file.stat().st_mode & 0o777 == 0o600
    for junk in ("", "[]", '{"seq": 7}', '{"seq": 7, "hash": "x", "decisions": 3, "more": 1}', "7"):
        file.write_text(junk)
        assert audit_check.saved_anchor() == audit_check.START, junk
