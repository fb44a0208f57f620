"""Databases of earlier versions, with rows in them, become those of today."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from botbottle.models import Bottle
from egress.models import DataPlaneEvent, Publication, RecordCursor
from egress.tables import versions
from supervise import audit_check
from supervise.audit_check import Break
from supervise.models import Decision
from tests.support import ROOT

Apps = Any


def migrate(*targets: tuple[str, str]) -> Apps:
    """The models of that time."""
    executor = MigrationExecutor(connection)
    executor.migrate(list(targets) or executor.loader.graph.leaf_nodes())
    return MigrationExecutor(connection).loader.project_state(list(targets)).apps


@pytest.fixture
def earlier(transactional_db: None) -> Iterator[Apps]:
    """The egress of version 0003; whatever happens, the next test finds today's."""
    try:
        yield migrate(("egress", "0003_dataplaneevent_process"))
    finally:
        migrate()


def test_processes_and_events_become_those_of_this_home(earlier: Apps) -> None:
    bottle = Bottle.objects.create(slug="agent-a", token_digest="0" * 64)
    names = ("DataPlaneEvent", "RecordCursor", "Publication")
    events, cursors, publications = (earlier.get_model("egress", name).objects for name in names)
    publications.create(bottle_id=bottle.pk, home="elsewhere", version=3, live_version=2)
    for pk in (1, 2):
        cursors.create(pk=pk, boot=f"boot-{pk}", number=pk * 10)
    events.create(kind="away", text="the egress proxy does not answer", process=1)

    migrate()

    mine = versions.home_id()
    found = RecordCursor.objects.order_by("process").values_list("home", "process", "boot", "number", "lost")
    assert list(found) == [(mine, 0, "boot-1", 10, 0), (mine, 1, "boot-2", 20, 0)]
    RecordCursor.objects.create(home=mine, process=2)  # no key is given twice
    assert [(event.home, event.process) for event in DataPlaneEvent.objects.all()] == [(mine, 1)]
    kept = Publication.objects.get()
    assert (kept.home, kept.version, kept.live_version, kept.proxy_problems) == ("elsewhere", 3, 2, [])


def test_migrations_of_egress_use_no_code_that_may_change() -> None:
    """A name that is gone later would break every fresh install."""
    for path in (ROOT / "egress" / "migrations").glob("*.py"):
        imported = re.findall(r"^\s*(?:from|import) (\S+)", path.read_text(), re.MULTILINE)
        assert not [name for name in imported if re.match(r"botbottle|egress|supervise|\.\.", name)], path


@pytest.fixture
def without_bottles_of_decisions(transactional_db: None) -> Iterator[Apps]:
    try:
        yield migrate(("supervise", "0011_moved_at_is_in_the_audit"))
    finally:
        migrate()


def test_decisions_learn_their_bottle_and_tool(without_bottles_of_decisions: Apps) -> None:
    earlier = without_bottles_of_decisions
    bottles = [
        Bottle.objects.create(slug=f"agent-{number}", token_digest=str(number) * 64) for number in range(2)
    ]
    for bottle, tool in zip(bottles, ("egress-block", "mcp-tool"), strict=True):
        asked = earlier.get_model("supervise", "Proposal").objects.create(
            bottle_id=bottle.pk, tool=tool, payload={}, justification="", ask_digest="", digest="",
            base_version=1, status="rejected",
        )  # fmt: skip
        earlier.get_model("supervise", "Decision").objects.create(
            proposal=asked, status="rejected", actor_name="olivia", applied="nothing"
        )

    migrate()

    found = Decision.objects.order_by("bottle__slug").values_list("bottle__slug", "tool", "proposal__tool")
    assert list(found) == [("agent-0", "egress-block", "egress-block"), ("agent-1", "mcp-tool", "mcp-tool")]
    assert audit_check.verify()[1] == Break(0, "there are decisions that the record does not tell of")
