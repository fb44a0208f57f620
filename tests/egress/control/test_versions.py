"""Versioned tables and their files: immutable, never going back, gone with their bottle."""

from __future__ import annotations

import stat
from functools import partial
from typing import Any

import pytest
from django.db import IntegrityError, transaction

from botbottle.models import Bottle
from egress.contract import snapshot
from egress.models import Publication, RouteTableVersion
from egress.policy.errors import BadSnapshot
from egress.policy.routes import Route
from egress.tables import homes, publishing
from egress.tables import versions as store
from supervise.bottles import records as bottles
from tests.support.threads import together

pytestmark = pytest.mark.django_db(transaction=True)


def grow(bottle: Bottle, host: str) -> int:
    with transaction.atomic():
        newest = store.lock(bottle)
        store.append(newest, newest.table.with_route(Route(host)), author="tests", cause=host)
    return publishing.publish(bottle)


def load(bottle: Bottle) -> Any:
    directory = homes.bottle_directory(bottle)
    return snapshot.load((directory / "routes.yaml").read_text(), (directory / "gate.yaml").read_text())


def test_a_new_bottle_has_an_empty_published_table(agent_a: Bottle) -> None:
    assert store.current(agent_a).version == 1
    assert (load(agent_a).version, load(agent_a).table.routes) == (1, ())


def test_a_version_never_changes(agent_a: Bottle) -> None:
    version = store.current(agent_a)
    version.author = "somebody else"
    with pytest.raises(TypeError, match="never changes"):
        version.save()


def test_a_number_is_taken_once(agent_a: Bottle) -> None:
    first = store.current(agent_a)
    with transaction.atomic():
        store.append(first, first.table, author="tests", cause="one")
    with pytest.raises(IntegrityError), transaction.atomic():
        store.append(first, first.table, author="tests", cause="two")


def test_changes_at_one_moment_all_survive(agent_a: Bottle) -> None:
    hosts = [f"n{number}.example.com" for number in range(8)]
    published = together([partial(grow, agent_a, host) for host in hosts])
    assert max(published) == 9
    assert [route.host for route in load(agent_a).table.routes] == hosts
    assert load(agent_a).version == Publication.objects.get(bottle=agent_a).version == 9


def test_the_files_never_go_back(agent_a: Bottle) -> None:
    def watch() -> list[int]:
        seen: list[int] = []
        while not seen or seen[-1] < 25:
            try:
                seen.append(load(agent_a).version)
            except BadSnapshot:
                continue  # between the two files: a proxy keeps what it has
        return seen

    def write(number: int) -> None:
        for step in range(6):
            grow(agent_a, f"n{number}-{step}.example.com")

    *_, versions = together([*(partial(write, number) for number in range(4)), watch])
    assert versions == sorted(versions)
    assert versions[-1] == 25


def test_rollback_is_a_new_version_with_old_content(agent_a: Bottle) -> None:
    grow(agent_a, "one.example.com")
    grow(agent_a, "two.example.com")
    back = store.roll_back(store.current(agent_a), 2, author="olivia")
    assert (back.version, back.author, back.cause) == (4, "olivia", "rollback to v2")
    assert [route.host for route in back.table.routes] == ["one.example.com"]
    assert RouteTableVersion.objects.filter(bottle=agent_a).count() == 4


def test_files_and_directory_are_private(agent_a: Bottle) -> None:
    directory = homes.bottle_directory(agent_a)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    for name in ("routes.yaml", "gate.yaml"):
        assert stat.S_IMODE((directory / name).stat().st_mode) == 0o600


def test_a_deleted_bottles_files_are_removed(agent_a: Bottle) -> None:
    bottles.delete("agent-a", author="tests")
    directory = homes.bottle_directory(agent_a)
    assert not (directory / "routes.yaml").exists()
    assert not (directory / "gate.yaml").exists()


def test_a_deleted_bottle_is_not_published(agent_a: Bottle) -> None:
    bottles.delete("agent-a", author="tests")
    with pytest.raises(publishing.NotPublished, match="deleted"):
        publishing.publish(agent_a)


def test_a_late_removal_spares_the_next_bottle_of_that_name(agent_a: Bottle) -> None:
    bottles.delete("agent-a", author="tests")
    heir = bottles.create("agent-a", author="tests").bottle
    publishing.unpublish(agent_a)
    assert load(heir).version == 2, "a proxy that missed the removal takes no older table than the live one"


def test_catching_up_publishes_what_lags_and_removes_what_is_over(agent_a: Bottle, agent_b: Bottle) -> None:
    store.roll_back(store.current(agent_a), 1, author="tests")
    Bottle.objects.filter(pk=agent_b.pk).update(state=Bottle.State.DELETED)
    publishing.catch_up()
    assert load(agent_a).version == 2
    assert not (homes.bottle_directory(agent_b) / "routes.yaml").exists()
    assert Publication.objects.get(bottle=agent_b).version == 0


def test_a_bottle_whose_first_table_cannot_be_written_is_published_later(
    settings: Any, tmp_path: Any
) -> None:
    settings.BOTTLE_HOME = tmp_path
    (tmp_path / "bottles").write_text("in the way")
    made = bottles.create("agent-c", author="tests")
    assert made.bottle.accepts(made.token)
    assert "could not be written" in Publication.objects.get(bottle=made.bottle).problem
    (tmp_path / "bottles").unlink()
    publishing.catch_up()
    assert load(made.bottle).version == 1


def test_a_bottle_whose_files_cannot_be_removed_is_deleted_and_they_go_later(
    settings: Any, tmp_path: Any
) -> None:
    settings.BOTTLE_HOME = tmp_path
    made = bottles.create("agent-c", author="tests")
    directory = homes.bottle_directory(made.bottle)
    directory.rename(tmp_path / "aside")
    directory.write_text("in the way")
    bottles.delete("agent-c", author="tests")
    assert "could not be removed" in Publication.objects.get(bottle=made.bottle).problem
    directory.unlink()
    (tmp_path / "aside").rename(directory)
    publishing.catch_up()
    assert not (directory / "routes.yaml").exists()
