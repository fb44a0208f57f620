"""A card put aside: out of the queue for everybody, still pending, on record."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from botbottle.models import Bottle
from supervise import audit_check
from supervise.errors import AlreadyDecided, BadAsk, NoSuchProposal, NotPermitted
from supervise.models import AuditEvent, Proposal
from supervise.proposals import decisions, snooze
from tests.support.proposals import ask, seen

pytestmark = pytest.mark.django_db


def in_an_hour() -> datetime:
    return timezone.now() + timedelta(hours=1)


def test_it_stays_pending_and_is_recorded(agent_a: Bottle, operator: User) -> None:
    proposal, until = ask(agent_a), in_an_hour()
    snooze.snooze(proposal.pk, actor=operator, until=until)
    stored = Proposal.objects.get()
    assert (stored.status, stored.snoozed_until, stored.snoozed_by) == ("pending", until, "olivia")
    snooze.wake(proposal.pk, actor=operator)
    stored = Proposal.objects.get()
    assert (stored.snoozed_until, stored.snoozed_by) == (None, "")
    recorded = AuditEvent.objects.order_by("-seq").values_list("action", "actor_name")[:2]
    assert list(recorded) == [("woken", "olivia"), ("snoozed", "olivia")]
    assert audit_check.verify()[1] is None


def test_what_was_seen_before_can_still_be_decided(agent_a: Bottle, operator: User) -> None:
    proposal = ask(agent_a)
    digest = seen(proposal)
    snooze.snooze(proposal.pk, actor=operator, until=in_an_hour())
    decisions.reject(proposal.pk, actor=operator, seen_digest=digest, note="no")
    with pytest.raises(AlreadyDecided):
        snooze.snooze(proposal.pk, actor=operator, until=in_an_hour())


@pytest.mark.parametrize("distance", [timedelta(seconds=-1), timedelta(days=8)])
def test_the_end_is_near_and_not_over(agent_a: Bottle, operator: User, distance: timedelta) -> None:
    with pytest.raises(BadAsk, match="7 days"):
        snooze.snooze(ask(agent_a).pk, actor=operator, until=timezone.now() + distance)


def test_a_viewer_puts_nothing_aside(agent_a: Bottle, viewer: User) -> None:
    proposal = ask(agent_a)
    for verb in (lambda: snooze.snooze(proposal.pk, actor=viewer, until=in_an_hour()),
                 lambda: snooze.wake(proposal.pk, actor=viewer)):  # fmt: skip
        with pytest.raises(NotPermitted):
            verb()
    assert Proposal.objects.get().snoozed_until is None


def test_the_unknown_is_said_to_be_unknown(operator: User) -> None:
    with pytest.raises(NoSuchProposal):
        snooze.wake("nonsense", actor=operator)


@pytest.mark.parametrize(
    ("now", "hours", "morning"),
    [
        ("2026-03-01T22:00", 0, "2026-03-02T08:00"),
        ("2026-03-01T22:00", 5, "2026-03-03T03:00"),  # there it is already the 2nd
        ("2026-03-01T03:00", -8, "2026-03-01T16:00"),  # there it is still February
    ],
)
def test_tomorrow_is_the_operators_tomorrow(now: str, hours: int, morning: str) -> None:
    at = datetime.fromisoformat(now).replace(tzinfo=UTC)
    found = snooze.tomorrow(at, utc_offset=timedelta(hours=hours))
    assert found == datetime.fromisoformat(morning).replace(tzinfo=UTC)
