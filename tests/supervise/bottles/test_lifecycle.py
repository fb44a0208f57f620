"""The database follows the sandboxes: what reconciling writes down, and what it leaves alone."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from botbottle import backends
from botbottle.backends.local import backend as local
from botbottle.core.plan_types import Plan
from botbottle.launch import journal, plan_cache
from botbottle.models import Bottle
from egress.tables import homes
from supervise import audit_check, events
from supervise.bottles import lifecycle, reconcile
from supervise.bottles import records as bottles
from supervise.models import AuditEvent
from tests.supervise.test_events import sent_by
from tests.support.threads import together

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def home(settings: Any, tmp_path: Path) -> Path:
    settings.BOTTLE_HOME, settings.BOTTLE_MANIFESTS = tmp_path, tmp_path / "bottles"
    return tmp_path


@pytest.fixture
def lock(agent_a: Bottle) -> Iterator[Path]:
    """The local backend takes a held lock for a bottle that runs: the same fact as with a real one."""
    run = homes.bottle_directory(agent_a) / "run"
    run.mkdir(parents=True)
    yield run / "lock"


def happened() -> list[tuple[str, str]]:
    found = AuditEvent.objects.exclude(action="bottle created").order_by("seq")
    return [(event.action, event.actor_name) for event in found]


def told(bottle: Bottle, *entries: str, who: str = "olivia", **more: Any) -> None:
    for what in entries:
        journal.append(homes.bottle_directory(bottle), what, who=who, **more)


def state(bottle: Bottle) -> str:
    return Bottle.objects.get(pk=bottle.pk).state


def test_a_bottle_that_runs_and_ends_is_written_down_once(agent_a: Bottle, lock: Path) -> None:
    told(agent_a, journal.STARTING, journal.STARTED)
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        for _ in range(3):
            assert reconcile.reconcile()
        assert state(agent_a) == "running"
        assert happened() == [("bottle started", "olivia")]
    for _ in range(3):
        reconcile.reconcile()
    assert state(agent_a) == "stopped"
    assert happened() == [("bottle started", "olivia"), ("bottle stopped", "bot-bottle")]
    assert audit_check.verify()[1] is None


def test_a_failed_start_keeps_its_reason_until_the_next_one(agent_a: Bottle, lock: Path) -> None:
    told(agent_a, journal.STARTING)
    told(agent_a, journal.FAILED, text="no image\x00 \ud800")
    reconcile.reconcile()
    agent_a.refresh_from_db()
    assert (agent_a.state, agent_a.problem) == ("stopped", "no image\u2400 \ufffd")
    told(agent_a, journal.STARTING, journal.STARTED)
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        reconcile.reconcile()
    agent_a.refresh_from_db()
    assert (agent_a.state, agent_a.problem) == ("running", "")


def test_bottles_that_this_home_never_started_are_left_alone(agent_a: Bottle) -> None:
    Bottle.objects.update(state="running")  # by another home that shares the database
    reconcile.reconcile()
    assert state(agent_a) == "running"
    assert happened() == []


def test_a_backend_that_does_not_answer_changes_nothing_but_is_noted(
    agent_a: Bottle, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody.sock")
    Bottle.objects.update(state="running", backend="docker", problem="kept")
    told(agent_a, journal.STOPPING)
    reconcile.reconcile()
    agent_a.refresh_from_db()
    assert (agent_a.state, agent_a.problem, agent_a.journal_read) == ("running", "kept", 0)
    assert agent_a.backend_problem
    assert happened() == []
    Bottle.objects.update(backend="local")  # which answers
    reconcile.reconcile()
    agent_a.refresh_from_db()
    assert (agent_a.state, agent_a.backend_problem) == ("stopped", "")


def test_secrets_of_a_start_that_was_killed_do_not_wait_for_the_next_verb(
    agent_a: Bottle, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody.sock")  # nor for an engine that is away
    Bottle.objects.update(backend="docker")
    told(agent_a, journal.STARTING)
    variables = homes.bottle_directory(agent_a) / "run" / "docker" / "variables.json"
    variables.parent.mkdir(parents=True)
    variables.touch()
    reconcile.reconcile()
    assert not variables.exists()


def test_a_bottle_whose_backend_is_away_can_be_deleted(
    agent_a: Bottle, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody.sock")
    Bottle.objects.update(state="running", backend="docker")
    told(agent_a, journal.STARTING)
    directory = homes.bottle_directory(agent_a)
    plan_cache.write_command(Plan("agent-a", "docker", str(directory), command=("x",)))
    bottles.delete("agent-a", author="olivia")
    assert state(agent_a) == "deleted"
    assert AuditEvent.objects.get(action="bottle deleted").details["sandbox"]
    assert not journal.exists(directory), "an heir of the name inherits nothing"
    assert plan_cache.read_command(directory) == ()


class Ready:
    """A backend that could start bottles, as far as preparing asks."""

    def available(self) -> None:
        """It is."""


def manifest(home: Path, text: str) -> None:
    (home / "bottles").mkdir(exist_ok=True)
    (home / "bottles" / "agent-a.yaml").write_text(text)


def test_a_bottle_does_not_leave_a_backend_that_does_not_answer(
    agent_a: Bottle, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may still run there, with the same identity."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{home}/nobody.sock")
    monkeypatch.setattr(local.LocalBackend, "available", lambda _: None)
    Bottle.objects.update(state="running", backend="docker")
    told(agent_a, journal.STARTING)
    manifest(home, "agent: none\nbackend: local\n")
    with pytest.raises(lifecycle.NotStarted, match=r"backend docker before and may still run.*bottle delete"):
        lifecycle.start("agent-a", author="olivia", progress=print)
    agent_a.refresh_from_db()
    assert (agent_a.backend, agent_a.state) == ("docker", "running")


def test_a_bottle_that_runs_does_not_change_its_backend(
    agent_a: Bottle, home: Path, lock: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told(agent_a, journal.STARTING, journal.STARTED)
    manifest(home, "agent: none\nbackend: docker\nimage: x\n")
    known = backends.get
    monkeypatch.setattr(
        backends, "get", lambda name, home: Ready() if name == "docker" else known(name, home)
    )
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        for prepare in (partial(lifecycle.start, progress=print), lifecycle.prepare):
            with pytest.raises(lifecycle.NotStarted, match="runs already"):
                prepare("agent-a", author="olivia")
    assert Bottle.objects.get().backend == "local"


def test_a_bottle_that_changes_its_backend_leaves_nothing_in_the_former(
    agent_a: Bottle, home: Path, lock: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told(agent_a, journal.STARTING, journal.ENDED)
    lock.with_name("cgroups").touch()
    manifest(home, "agent: none\nbackend: docker\nimage: x\n")
    known = backends.get
    monkeypatch.setattr(
        backends, "get", lambda name, home: Ready() if name == "docker" else known(name, home)
    )
    with pytest.raises(lifecycle.NotStarted):  # nobody serves its sockets here
        lifecycle.prepare("agent-a", author="olivia")
    assert list(lock.parent.iterdir()) == []
    assert Bottle.objects.get().backend == "docker"
    assert AuditEvent.objects.get(action="sandbox removed").details == {"backend": "local"}


def test_a_deleted_bottle_stays_deleted(agent_a: Bottle, lock: Path) -> None:
    told(agent_a, journal.STARTING, journal.STARTED)
    seen_before = Bottle.objects.get(pk=agent_a.pk)
    Bottle.objects.update(state="deleted")
    assert reconcile.reconcile_bottle(seen_before).state == "deleted"
    assert happened() == []


def test_one_reconciler_at_a_time(agent_a: Bottle, home: Path) -> None:
    (home / "run").mkdir()
    with (home / "run" / "reconcile.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert not reconcile.reconcile()
        assert lifecycle.ps() == [agent_a], "who asks is answered all the same"
    assert reconcile.reconcile()


@pytest.mark.django_db(transaction=True)
def test_many_who_look_at_one_moment_write_it_down_once(agent_a: Bottle, lock: Path) -> None:
    told(agent_a, journal.STARTING, journal.ENDED, exit_code=3)
    together([partial(reconcile.reconcile_bottle, Bottle.objects.get(pk=agent_a.pk)) for _ in range(6)])
    assert happened() == [("bottle started", "olivia"), ("bottle stopped", "bot-bottle")]
    assert Bottle.objects.get().exit_code == 3


def test_a_quiet_round_writes_nothing(agent_a: Bottle, lock: Path, django_assert_num_queries: Any) -> None:
    told(agent_a, journal.STARTING, journal.ENDED)
    reconcile.reconcile()
    with django_assert_num_queries(4):  # the bottles, this one anew, the backends in use, the slugs of one
        reconcile.reconcile()


@pytest.mark.django_db(transaction=True)
async def test_pages_hear_of_a_change_and_of_nothing_else(agent_a: Bottle, lock: Path) -> None:
    def change() -> None:
        told(agent_a, journal.STARTING)
        told(agent_a, journal.FAILED, text="sneaky")
        reconcile.reconcile()
        reconcile.reconcile()

    messages = await sent_by(events.BOTTLES, change)
    assert messages == [{"type": "bottle.event", "id": agent_a.pk, "state": "stopped"}]


def test_one_bottle_that_cannot_be_settled_stops_no_other(
    agent_a: Bottle, agent_b: Bottle, lock: Path, caplog: Any
) -> None:
    told(agent_b, journal.STARTING, journal.ENDED)
    (homes.bottle_directory(agent_a) / journal.NAME).mkdir()
    reconcile.reconcile()
    assert state(agent_b) == "stopped"
    assert "agent-a" in caplog.text
