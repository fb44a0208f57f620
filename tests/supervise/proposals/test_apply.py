"""From a committed decision to files the proxy loads, also when writing them fails for a while."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from django.db import transaction

from botbottle.models import Bottle
from egress.contract import snapshot
from egress.tables import homes, publishing, versions
from supervise import background
from supervise.bottles import records as bottles
from supervise.models import AuditEvent, Decision
from supervise.proposals import apply, decisions, queries
from tests.support.proposals import ask, ask_gate, ask_image, seen
from tests.support.threads import together

pytestmark = pytest.mark.django_db(transaction=True)


def files_of(bottle: Bottle) -> Any:
    directory = homes.bottle_directory(bottle)
    return snapshot.load((directory / "routes.yaml").read_text(), (directory / "gate.yaml").read_text())


@contextmanager
def unwritable(directory: Path) -> Iterator[None]:
    """A file where the directory should be: refused for everybody, also for root."""
    aside = directory.with_name(directory.name + ".aside")
    directory.rename(aside)
    directory.write_text("in the way")
    try:
        yield
    finally:
        directory.unlink()
        aside.rename(directory)


def pass_the_grace() -> None:
    """As if a little time had passed since every decision."""
    for decision in Decision.objects.all():
        earlier = decision.created_at - apply.GRACE - timedelta(seconds=1)
        Decision.objects.filter(pk=decision.pk).update(created_at=earlier)


def test_an_approved_route_is_live_when_the_decision_returns(agent_a: Bottle, approve: Any) -> None:
    decision = approve(ask(agent_a, path_allowlist=["/v1"]))
    decision.refresh_from_db()
    assert (decision.applied, decision.live_version) == ("live", 2)
    assert decision.live_at is not None
    assert queries.live_routes(agent_a)["routes"][0]["host"] == "api.example.com"
    assert AuditEvent.objects.latest("seq").action == "live"


def test_the_files_equal_the_table(agent_a: Bottle, approve: Any) -> None:
    assert files_of(agent_a).version == 1
    approve(ask(agent_a, path_allowlist=["/v1"], lease={"ttl_seconds": 60, "max_uses": 3}))
    approve(ask(agent_a, "*.example.org", auth={"scheme": "Bearer", "token_ref": "TOKEN"}))
    approve(ask_gate(agent_a))
    written, newest = files_of(agent_a), versions.current(agent_a)
    assert (written.bottle, written.version, written.table) == ("agent-a", 4, newest.table)


def test_what_cannot_be_written_is_approved_but_not_live_until_it_can(
    agent_a: Bottle, approve: Any, caplog: Any
) -> None:
    proposal = ask(agent_a)
    with unwritable(homes.bottle_directory(agent_a)):
        decision = approve(proposal)
        decision.refresh_from_db()
        assert (decision.status, decision.applied, decision.live_version) == ("approved", "failed", None)
        outcome = queries.outcome(proposal.pk)
        assert outcome.is_final
        assert outcome.explanation.startswith("Approved, but not live: the route table could not be written")
        agent_a.publication.refresh_from_db()
        assert agent_a.publication.problem == decision.apply_error
        assert AuditEvent.objects.latest("seq").action == "failed"
        rows, said = AuditEvent.objects.count(), len(caplog.records)
        pass_the_grace()
        background.run_maintenance()
        background.run_maintenance()
        assert (AuditEvent.objects.count(), len(caplog.records)) == (rows, said)
    background.run_maintenance()
    decision.refresh_from_db()
    assert (decision.applied, decision.live_version, decision.apply_error) == ("live", 2, "")
    assert files_of(agent_a).table == versions.current(agent_a).table
    agent_a.publication.refresh_from_db()
    assert agent_a.publication.problem == ""


def test_one_broken_bottle_does_not_hold_up_the_others(
    agent_a: Bottle, agent_b: Bottle, approve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with unwritable(homes.bottle_directory(agent_a)), unwritable(homes.bottle_directory(agent_b)):
        for number in range(3):
            approve(ask(agent_a, f"n{number}.example.com"))
        approve(ask(agent_b))
    tried: list[str] = []
    publish = publishing.publish
    monkeypatch.setattr(publishing, "publish", lambda bottle: (tried.append(bottle.slug), publish(bottle))[1])
    pass_the_grace()
    with unwritable(homes.bottle_directory(agent_a)):
        assert apply.retry_unfinished() == 1
    assert tried == ["agent-a", "agent-b"]
    assert apply.retry_unfinished() == 3


def test_what_a_dead_process_left_waiting_is_applied(
    agent_a: Bottle, approve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as dying:
        dying.setattr(apply, "publish", lambda decision: None)
        decision = approve(ask(agent_a))
    assert not queries.outcome(decision.proposal_id).is_final
    assert apply.retry_unfinished() == 0  # its own process may still be at it
    pass_the_grace()
    assert apply.retry_unfinished() == 1
    assert queries.outcome(decision.proposal_id).live_version == 2


def test_what_is_live_is_not_set_back_nor_recorded_twice(
    agent_a: Bottle, approve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(bottle: Bottle) -> int:
        raise publishing.NotPublished("the disk is full")

    decision = approve(ask(agent_a))
    rows = AuditEvent.objects.count()
    apply.publish(decision)
    monkeypatch.setattr(publishing, "publish", fail)
    apply.publish(decision)
    assert decision.applied == "live"
    assert AuditEvent.objects.count() == rows


def test_applying_the_same_decision_at_one_moment_records_it_once(
    agent_a: Bottle, approve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as dying:
        dying.setattr(apply, "publish", lambda decision: None)
        decision = approve(ask(agent_a))
    together([partial(apply.publish, decision)] * 4)
    assert AuditEvent.objects.filter(action="live").count() == 1


def test_a_rolled_back_decision_publishes_nothing(agent_a: Bottle, approve: Any) -> None:
    proposal = ask(agent_a)
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        approve(proposal)
        raise ZeroDivisionError
    assert queries.get_proposal(proposal.pk).is_pending
    assert files_of(agent_a).version == 1


def test_a_recorded_image_is_left_alone(agent_a: Bottle, approve: Any) -> None:
    decision = approve(ask_image(agent_a))
    pass_the_grace()
    assert apply.retry_unfinished() == 0
    decision.refresh_from_db()
    assert decision.applied == "recorded"


def test_a_decision_for_a_deleted_bottle_is_never_published(
    agent_a: Bottle, approve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as dying:
        dying.setattr(apply, "publish", lambda decision: None)
        decision = approve(ask(agent_a))
    bottles.delete("agent-a", author="tests")
    heir = bottles.create("agent-a", author="tests").bottle
    apply.publish(decision)
    assert (decision.applied, decision.apply_error) == ("failed", "the bottle was deleted")
    assert files_of(heir).table.routes == ()
    pass_the_grace()
    assert apply.retry_unfinished() == 0


def test_a_lost_directory_is_made_again(agent_a: Bottle, approve: Any) -> None:
    shutil.rmtree(homes.bottle_directory(agent_a))
    approve(ask(agent_a))
    assert files_of(agent_a).version == 2


def test_a_decision_stands_when_applying_it_goes_wrong_in_an_unknown_way(
    agent_a: Bottle, operator: Any, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    def explode(bottle: Bottle) -> int:
        raise RuntimeError("unforeseen")

    monkeypatch.setattr(publishing, "publish", explode)
    proposal = ask(agent_a)
    decision = decisions.approve(proposal.pk, actor=operator, seen_digest=seen(proposal))
    decision.refresh_from_db()
    assert decision.applied == "waiting"
    assert "unforeseen" in caplog.text
