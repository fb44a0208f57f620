"""How many statements a decision and a filing need. On SQLite all writers wait for each of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test.utils import CaptureQueriesContext

from botbottle.models import Bottle
from supervise import audit_check
from supervise.proposals import decisions
from tests.support.proposals import ask, seen

pytestmark = pytest.mark.django_db(transaction=True)
NOT_COUNTED = ("BEGIN", "COMMIT")
# A row lock is a statement of its own; on SQLite, the transaction is the lock.
LOCK = {"sqlite": 0, "postgresql": 1}


@pytest.fixture
def decider(operator: User, agent_a: Bottle) -> User:
    """As a request has them: what they may do was read with the page before."""
    operator.has_perm("supervise.decide_proposal")
    ask(agent_a, "warm.example.com")  # the head of the audit chain is known to this process
    return operator


@pytest.fixture
def at_most() -> Callable[[int], AbstractContextManager[Any]]:
    class Counted(CaptureQueriesContext):
        def __init__(self, most: int) -> None:
            super().__init__(connection)
            self.most = most + LOCK[connection.vendor]

        def __exit__(self, kind: Any, *rest: Any) -> None:
            super().__exit__(kind, *rest)
            statements = [each["sql"] for each in self if not each["sql"].startswith(NOT_COUNTED)]
            assert kind or len(statements) <= self.most, "\n".join(statements)

    return Counted


def test_an_approval_takes_fourteen_statements(agent_a: Bottle, decider: User, at_most: Any) -> None:
    proposal = ask(agent_a)
    digest = seen(proposal)
    with at_most(14):
        decision = decisions.approve(proposal.pk, actor=decider, seen_digest=digest)
    assert decision.status == "approved"
    assert decision.applied == "live"  # type: ignore[union-attr]
    assert audit_check.verify()[1] is None


def test_a_rejection_takes_eight_statements(agent_a: Bottle, decider: User, at_most: Any) -> None:
    proposal = ask(agent_a)
    digest = seen(proposal)
    with at_most(8):
        decisions.reject(proposal.pk, actor=decider, seen_digest=digest, note="No.")


def test_a_filing_takes_ten_statements(agent_a: Bottle, decider: User, at_most: Any) -> None:
    with at_most(10):
        ask(agent_a)


def test_what_an_operator_may_do_is_one_statement(operator: User) -> None:
    fresh = User.objects.get(pk=operator.pk)
    with CaptureQueriesContext(connection) as statements:
        assert fresh.has_perm("supervise.decide_proposal")
        assert not fresh.has_perm("supervise.add_assignment")
    assert len(statements) == 1
