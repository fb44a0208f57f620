"""The hash chain: complete, in order, and broken by anything done behind its back."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from django.db import connection, transaction

from supervise import audit
from supervise.models import AuditEvent, AuditHead
from tests.support.threads import together


@pytest.fixture
def chain(db: None) -> list[AuditEvent]:
    with transaction.atomic():
        return [
            audit.append(f"step {number}", actor_name="tests", details={"n": [number, "é\u202e", None, 1.5]})
            for number in range(1, 6)
        ]


def test_an_untouched_chain_holds(chain: list[AuditEvent]) -> None:
    assert audit.verify() == (5, None)
    assert audit.newest_seq() == 5


def test_an_empty_chain_holds(db: None) -> None:
    assert audit.verify() == (0, None)
    assert audit.newest_seq() == 0


def _sql(statement: str) -> None:
    with connection.cursor() as cursor:
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
    rows, broken = audit.verify()
    assert broken is not None
    assert (rows, broken.problem) == (intact, problem)


def test_a_row_rewritten_with_a_fitting_hash_breaks_the_next_link(chain: list[AuditEvent]) -> None:
    event = AuditEvent.objects.get(seq=3)
    event.actor_name = "somebody else"
    AuditEvent.objects.filter(seq=3).update(actor_name=event.actor_name, hash=audit.link_hash(event))
    rows, broken = audit.verify()
    assert broken is not None
    assert (rows, broken.seq) == (3, 4)


def test_the_last_row_rewritten_with_a_fitting_hash_is_not_what_the_head_knows(
    chain: list[AuditEvent],
) -> None:
    event = AuditEvent.objects.get(seq=5)
    event.actor_name = "somebody else"
    AuditEvent.objects.filter(seq=5).update(actor_name=event.actor_name, hash=audit.link_hash(event))
    assert audit.verify()[1] == audit.Break(5, "row 5 was rewritten")


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
    assert audit.verify() == (1, None)


def _append(action: str) -> None:
    with transaction.atomic():
        audit.append(action, actor_name="tests")


@pytest.mark.django_db(transaction=True)
def test_appends_at_one_moment_make_one_chain_from_the_very_first_row() -> None:
    assert together([partial(_append, f"step {number}") for number in range(8)]) == [None] * 8
    assert audit.verify() == (8, None)


@pytest.mark.django_db(transaction=True)
def test_verifying_while_others_append_raises_no_false_alarm() -> None:
    def append_many() -> None:
        for _ in range(30):
            _append("step")

    def verify_many() -> list[Any]:
        return [audit.verify()[1] for _ in range(30)]

    *_, alarms = together([append_many, append_many, verify_many])
    assert alarms == [None] * 30
    assert audit.verify() == (60, None)
