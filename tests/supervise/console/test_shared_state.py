"""Twenty open pages that look after one event: their state is computed once, and it is never an old one."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from botbottle.models import Bottle
from supervise.console import shared_reads
from supervise.console import views as console
from supervise.console.queue_query import page_of
from supervise.models import Proposal
from supervise.proposals import decisions
from tests.support.proposals import ask, seen

pytestmark = pytest.mark.django_db(transaction=True)
CONSOLES = 20


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Each time that somebody computes what a view shows."""
    made: list[Any] = []
    monkeypatch.setattr(console, "page_of", lambda wanted: made.append(wanted) or page_of(wanted))
    monkeypatch.setattr(shared_reads, "FRESH", timedelta(hours=1))
    return made


def states(pages: list[Client], query: str = "") -> list[dict[str, Any]]:
    answers = [page.get(f"/queue/state?{query}").json() for page in pages]
    return [{name: value for name, value in answer.items() if name != "now"} for answer in answers]


def test_the_state_is_computed_once_for_each_event_and_view(
    olivia: Client, vera: Client, operator: User, agent_a: Bottle, looks: list[Any]
) -> None:
    pages = [olivia, vera] * (CONSOLES // 2)
    proposal = ask(agent_a)
    filed = states(pages)
    assert filed == [filed[0]] * CONSOLES
    assert filed[0]["counts"]["pending"] == 1 and list(filed[0]["cards"]) == [str(proposal.pk)]
    assert len(looks) == 1
    decisions.approve(proposal.pk, actor=operator, seen_digest=seen(proposal))
    decided = states(pages)
    assert decided == [decided[0]] * CONSOLES
    assert decided[0]["counts"]["pending"] == 0 and decided[0]["cards"] == {}
    assert len(looks) == 2
    assert states(pages, "show=snoozed")[0]["counts"]["pending"] == 0
    assert len(looks) == 3


def test_a_commit_that_tells_nobody_is_in_the_next_state(
    olivia: Client, agent_a: Bottle, looks: list[Any]
) -> None:
    proposal = ask(agent_a)
    (before,) = states([olivia])
    Proposal.objects.filter(pk=proposal.pk).update(joined=7)
    (after,) = states([olivia])
    assert before["cards"] != after["cards"]


def test_what_a_page_shows_itself_is_its_own(olivia: Client, agent_a: Bottle, looks: list[Any]) -> None:
    ask(agent_a)
    since = olivia.get("/queue/state").json()
    assert since["arrived"] == 1
    (with_card,) = states([olivia], f"since=0@0&id={next(iter(since['cards']))}")
    assert with_card["arrived"] == 0
    assert len(looks) == 1


def test_who_may_not_look_gets_nothing_of_it(olivia: Client, agent_a: Bottle, looks: list[Any]) -> None:
    ask(agent_a)
    states([olivia])
    nobody = Client()
    nobody.force_login(User.objects.create_user("nils", is_staff=True))
    assert nobody.get("/queue/state").status_code == 403
    assert Client().get("/queue/state").status_code == 302


def test_a_shared_state_costs_an_open_page_few_statements(
    olivia: Client, agent_a: Bottle, looks: list[Any]
) -> None:
    ask(agent_a)
    states([olivia])
    with CaptureQueriesContext(connection) as statements:
        states([olivia])
    # The session, the user, what they may do, and what arrived since this page was made.
    assert len(statements) <= 4, [each["sql"] for each in statements]
