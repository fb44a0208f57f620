"""What is new to an open page of the queue: nothing that it does not show stays unsaid, on any database."""

from __future__ import annotations

from threading import Event

import pytest
from django.db import transaction

from botbottle.models import Bottle
from supervise.console.queue_query import Filter, QueuePage, Since, arrived, page_of
from tests.support.proposals import ask
from tests.support.threads import together
from tests.support.timeouts import PATIENCE


@pytest.mark.django_db(transaction=True)
def test_what_was_being_filed_while_a_page_was_made_is_new_to_it(agent_a: Bottle, agent_b: Bottle) -> None:
    """Its time is that of its beginning, but only its end makes it visible."""
    filed, made = Event(), Event()

    def file() -> None:
        with transaction.atomic():
            ask(agent_a, "slow.example.com")
            filed.set()
            assert made.wait(PATIENCE)

    def look() -> QueuePage:
        assert filed.wait(PATIENCE)
        try:
            return page_of(Filter())
        finally:
            made.set()

    ask(agent_b, "early.example.com")
    _, page = together([file, look])
    assert [review.proposal.payload["host"] for review in page.reviews] == ["early.example.com"]
    assert arrived(Filter(), Since.of_text(str(page.since))) == 1
    page = page_of(Filter())
    assert len(page.reviews) == 2
    assert arrived(Filter(), Since.of_text(str(page.since))) == 0
