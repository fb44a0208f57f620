"""From the newest table to the proxy's ack: live only when the proxy says so, and tried until it does."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from threading import Event
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test.utils import CaptureQueriesContext

from botbottle.models import Bottle, digest_token
from egress.models import Publication
from egress.tables import homes, publishing, versions
from egress.tables.proxy_client import ProxyClient
from supervise import background, events
from supervise.bottles import actions, route_actions
from supervise.bottles import records as bottles
from supervise.models import Decision
from supervise.proposals import apply, queries
from tests.support.fake_proxy import LOADED_AT, StandIn
from tests.support.full_disk import no_room, without_new_files
from tests.support.threads import together

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apply, "GRACE", apply.GRACE * 0)


def publication(bottle: Bottle) -> Publication:
    return Publication.objects.get(bottle=bottle)


def identity(bottle: Bottle) -> dict[str, Any]:
    return json.loads((homes.bottle_directory(bottle) / "identity.json").read_text())


def test_a_decision_is_live_when_the_proxy_has_acknowledged_it(
    plane: StandIn, agent_a: Bottle, approve: Any
) -> None:
    decision = approve(agent_a)
    assert (decision.applied, decision.live_version, plane.live) == ("live", 2, {"agent-a": 2})
    known = publication(agent_a)
    assert (known.version, known.live_version, known.problem) == (2, 2, "")
    assert known.live_at == LOADED_AT, "since when the proxy says, not since when we heard"


def test_with_the_proxy_down_it_is_approved_but_not_live_until_it_is_back(
    plane: StandIn, agent_a: Bottle, approve: Any
) -> None:
    plane.stop()
    decision = approve(agent_a)
    assert (decision.status, decision.applied, decision.live_version) == ("approved", "failed", None)
    told = queries.outcome(decision.proposal_id).explanation
    assert told.startswith("Approved, but not live: the egress proxy does not answer (No such file")
    assert (publication(agent_a).version, publication(agent_a).live_version) == (2, 1)
    background.run_maintenance()
    decision.refresh_from_db()
    assert decision.applied == "failed", "it is still down"
    plane.start()
    background.run_maintenance()
    decision.refresh_from_db()
    assert (decision.applied, decision.apply_error, decision.live_version) == ("live", "", 2)
    assert (publication(agent_a).live_version, publication(agent_a).problem) == (2, "")


def test_a_proxy_that_keeps_an_older_version_says_why(plane: StandIn, agent_a: Bottle, approve: Any) -> None:
    plane.problems["agent-a"] = "routes.yaml is damaged. Version 1 stays live."
    decision = approve(agent_a)
    assert decision.applied == "failed"
    expected = "the egress proxy did not take version 2: routes.yaml is damaged. Version 1 stays live"
    assert decision.apply_error == publication(agent_a).problem == expected
    assert publication(agent_a).live_version == 1
    told = queries.outcome(decision.proposal_id).explanation
    assert f"{expected}. It is retried" in told, "one full stop"
    plane.problems.clear()
    background.run_maintenance()
    decision.refresh_from_db()
    assert (decision.applied, decision.live_version) == ("live", 2)


def test_a_version_with_a_problem_is_not_live(plane: StandIn, agent_a: Bottle) -> None:
    """The table may be there while the token's file, or the sockets, are not in order."""
    plane.problems["agent-a"] = "The bottle's sockets cannot be opened."
    with pytest.raises(publishing.NotPublished, match="did not take version 1: The bottle's sockets"):
        publishing.publish(agent_a)


def test_an_older_version_without_a_reason_is_named(plane: StandIn, agent_a: Bottle) -> None:
    plane.problems["agent-a"], plane.live["agent-a"] = "", 7
    with pytest.raises(publishing.NotPublished, match="did not take version 1: it serves version 7"):
        publishing.publish(agent_a)


def test_the_proxy_reads_the_files_while_nobody_writes_them(
    plane: StandIn, agent_a: Bottle, agent_b: Bottle
) -> None:
    torn = []

    def look() -> None:
        directory = homes.bottle_directory(agent_a)
        before = [(directory / name).stat().st_mtime_ns for name in ("gate.yaml", "routes.yaml")]
        pause.wait(0.02)
        torn.append(
            before != [(directory / name).stat().st_mtime_ns for name in ("gate.yaml", "routes.yaml")]
        )

    pause = Event()
    plane.reloading = look
    assert together([partial(publishing.publish, agent_a) for _ in range(6)]) == [1] * 6
    assert torn == [False] * 6


def test_a_new_token_is_handed_over_at_once(plane: StandIn, agent_a: Bottle) -> None:
    known = {"slug": "agent-a", "token_sha256": agent_a.token_digest, "supervise": True}
    assert identity(agent_a) == known
    plane.asked.clear()
    token = bottles.rotate_token("agent-a", author="tests").token
    assert identity(agent_a)["token_sha256"] == digest_token(token)
    assert plane.asked == [("POST", "/reload/agent-a")]
    assert publication(agent_a).live_version == 1


def test_a_new_token_reaches_a_proxy_that_was_down(plane: StandIn, agent_a: Bottle) -> None:
    plane.stop()
    bottles.rotate_token("agent-a", author="tests")
    assert publication(agent_a).live_version == 0
    plane.start()
    plane.asked.clear()
    publishing.catch_up()
    assert plane.asked == [("POST", "/reload/agent-a")]
    assert publication(agent_a).live_version == 1


def test_a_new_token_whose_file_could_not_be_written_is_not_forgotten_when_the_proxy_restarts(
    plane: StandIn, agent_a: Bottle, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as full_disk:
        full_disk.setattr(
            publishing, "write_atomically", lambda *_, **__: (_ for _ in ()).throw(OSError(28, "No space"))
        )
        token = bottles.rotate_token("agent-a", author="tests").token
    assert publication(agent_a).problem == "the route table could not be written: No space"
    publishing.lower_live_versions({"agent-a": 1})
    publishing.catch_up()
    assert identity(agent_a)["token_sha256"] == digest_token(token)


def test_a_deleted_bottle_is_taken_from_the_proxy(plane: StandIn, agent_a: Bottle) -> None:
    bottles.delete("agent-a", author="tests")
    assert plane.live == {}
    assert not (homes.bottle_directory(agent_a) / "identity.json").exists()
    assert (publication(agent_a).version, publication(agent_a).live_version) == (0, 0)


def test_a_bottle_deleted_while_the_proxy_is_down_is_taken_from_it_later(
    plane: StandIn, agent_a: Bottle
) -> None:
    plane.stop()
    bottles.delete("agent-a", author="tests")
    assert "does not answer" in publication(agent_a).problem
    plane.start()
    publishing.catch_up()
    assert plane.live == {}
    assert publication(agent_a).problem == ""


def test_a_new_bottle_of_the_same_name_never_gets_the_dead_ones_routes(
    plane: StandIn, agent_a: Bottle, approve: Any
) -> None:
    """The proxy that missed the removal still serves version 2; it takes no older one."""
    approve(agent_a)
    plane.stop()
    bottles.delete("agent-a", author="tests")
    heir = bottles.create("agent-a", author="tests").bottle
    plane.start()
    background.run_maintenance()
    assert plane.live == {"agent-a": 3}
    assert publication(heir).live_version == 3
    assert versions.current(heir).table.routes == ()


def test_after_a_restart_only_what_went_back_is_published_again(
    plane: StandIn, agent_a: Bottle, agent_b: Bottle, approve: Any
) -> None:
    approve(agent_a)
    publishing.lower_live_versions({"agent-a": 1, "agent-b": 1})
    assert (publication(agent_a).live_version, publication(agent_b).live_version) == (1, 1)
    plane.asked.clear()
    publishing.catch_up()
    assert plane.asked == [("POST", "/reload/agent-a")]
    assert publication(agent_a).live_version == 2


def test_without_a_proxy_what_is_written_counts_as_live(home: Any, agent_a: Bottle, approve: Any) -> None:
    assert approve(agent_a).live_version == 2
    assert publication(agent_a).live_version == 2


# --- without room on the disk


def files(bottle: Bottle) -> set[str]:
    directory = homes.bottle_directory(bottle)
    return {name for name in ("routes.yaml", "gate.yaml", "identity.json") if (directory / name).exists()}


def test_a_route_is_withdrawn_without_room_for_a_new_file(
    plane: StandIn, agent_a: Bottle, approve: Any, operator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    approve(agent_a)
    without_new_files(monkeypatch)
    route_actions.withdraw_route("agent-a", "api.example.com", actor=operator, seen_version=2)
    known = publication(agent_a)
    assert (known.live_version, known.problem, plane.live) == (3, "", {"agent-a": 3})
    routes = (homes.bottle_directory(agent_a) / "routes.yaml").read_text()
    assert "api.example.com" not in routes


def test_a_token_is_replaced_without_room_for_a_new_file(
    plane: StandIn, agent_a: Bottle, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_new_files(monkeypatch)
    token = bottles.rotate_token("agent-a", author="tests").token
    assert identity(agent_a)["token_sha256"] == digest_token(token)
    assert publication(agent_a).live_version == 1


def test_a_table_that_cannot_be_written_and_takes_something_away_cuts_the_bottle_off(
    plane: StandIn, agent_a: Bottle, approve: Any, operator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With these files a restarted proxy would serve what was taken away."""
    approve(agent_a)
    with monkeypatch.context() as full_disk:
        full_disk.setattr(publishing, "write_atomically", no_room)
        route_actions.withdraw_route("agent-a", "api.example.com", actor=operator, seen_version=2)
        assert (files(agent_a), plane.live) == (set(), {})
        publishing.catch_up()
    known = publication(agent_a)
    assert (known.live_version, files(agent_a)) == (0, set())
    assert known.problem == (
        "the route table could not be written: No space left on device. It takes something away, so the "
        "bottle is cut off from everything until it can be written"
    )
    publishing.catch_up()
    assert (publication(agent_a).live_version, plane.live) == (3, {"agent-a": 3})


def test_a_table_that_only_adds_leaves_the_old_one_live_when_it_cannot_be_written(
    plane: StandIn, agent_a: Bottle, approve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    approve(agent_a)
    with monkeypatch.context() as full_disk:
        full_disk.setattr(publishing, "write_atomically", no_room)
        decision = approve(agent_a, "more.example.com")
    assert (decision.applied, plane.live, publication(agent_a).live_version) == (
        "failed",
        {"agent-a": 2},
        2,
    )
    assert files(agent_a) == {"routes.yaml", "gate.yaml", "identity.json"}


# --- several homes on one database


@pytest.fixture
def from_another_home(settings: Any, tmp_path: Any) -> Callable[[Callable[[], Any]], Any]:
    """Does something as a worker with a home of its own and no proxy would."""

    def away(change: Callable[[], Any]) -> Any:
        home = settings.BOTTLE_HOME
        settings.BOTTLE_HOME, settings.EGRESS_PROXY = tmp_path, False
        try:
            return change()
        finally:
            settings.BOTTLE_HOME, settings.EGRESS_PROXY = home, True

    return away


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The homes that were called because there is something to apply."""
    called: list[str] = []
    monkeypatch.setattr(events, "call_home", called.append)
    return called


def test_a_decision_taken_elsewhere_is_live_when_the_bottles_own_proxy_has_it(
    plane: StandIn, agent_a: Bottle, approve: Any, from_another_home: Any, called: list[str]
) -> None:
    decision = from_another_home(lambda: approve(agent_a))
    assert (decision.status, decision.applied, decision.live_version) == ("approved", "waiting", None)
    assert not queries.outcome(decision.proposal_id).is_final, "the call waits on"
    assert called == [homes.home_id()]
    from_another_home(background.run_maintenance)
    decision.refresh_from_db()
    assert (decision.applied, plane.live, publication(agent_a).live_version) == (
        "waiting",
        {"agent-a": 1},
        1,
    )
    background.run_maintenance(at_once=True)
    decision.refresh_from_db()
    assert (decision.applied, decision.live_version, plane.live) == ("live", 2, {"agent-a": 2})


def test_a_route_withdrawn_elsewhere_is_withdrawn_at_the_bottles_own_proxy(
    plane: StandIn, agent_a: Bottle, approve: Any, from_another_home: Any, called: list[str]
) -> None:
    operator = User.objects.get(username=approve(agent_a).actor_name)
    from_another_home(lambda: actions.rollback("agent-a", 1, actor=operator, seen_version=2))
    from_another_home(publishing.catch_up)
    assert (called, plane.live, publication(agent_a).live_version) == (
        [homes.home_id()],
        {"agent-a": 2},
        2,
    )
    publishing.catch_up()
    assert (plane.live, publication(agent_a).live_version) == ({"agent-a": 3}, 3)


def test_a_bottle_deleted_elsewhere_is_taken_from_its_own_proxy(
    plane: StandIn, agent_a: Bottle, from_another_home: Any, called: list[str]
) -> None:
    from_another_home(lambda: bottles.delete("agent-a", author="tests"))
    from_another_home(publishing.catch_up)
    assert (called, plane.live) == ([homes.home_id()], {"agent-a": 1})
    publishing.catch_up()
    assert plane.live == {}


def test_another_homes_restarted_proxy_says_nothing_of_our_bottles(
    plane: StandIn, agent_a: Bottle, from_another_home: Any
) -> None:
    from_another_home(lambda: publishing.lower_live_versions({}))
    assert publication(agent_a).live_version == 1


def test_each_other_home_is_fetched_once(home: Any, agent_a: Bottle, agent_b: Bottle) -> None:
    Publication.objects.update(home="another")
    with CaptureQueriesContext(connection) as asked:
        assert homes.other_homes() == {"another"}
    assert "DISTINCT" in asked.captured_queries[0]["sql"]


def test_a_proxy_that_does_not_answer_is_asked_once_a_round(
    plane: StandIn, agent_a: Bottle, agent_b: Bottle, approve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plane.stop()
    made = [approve(agent_a), approve(agent_b)]
    Decision.objects.update(applied="waiting")
    asked: list[str] = []
    reload = ProxyClient.reload
    monkeypatch.setattr(ProxyClient, "reload", lambda self, slug: (asked.append(slug), reload(self, slug))[1])
    apply.retry_unfinished()
    assert asked == ["agent-a"]
    assert {Decision.objects.get(pk=decision.pk).applied for decision in made} == {"failed"}
    publishing.catch_up()
    assert len(asked) == 2


# --- what agents are shown


def test_agents_are_shown_what_the_proxy_says(plane: StandIn, agent_a: Bottle, approve: Any) -> None:
    approve(agent_a)
    assert queries.live_routes(agent_a) == {
        "version": 2,
        "source": "proxy",
        "routes": [{"host": "from.proxy"}],
        "gate_hosts": ["api.example.com"],
    }


@pytest.mark.parametrize("how", ["down", "forgetful"])
def test_agents_are_shown_the_last_ack_when_the_proxy_cannot_say(
    plane: StandIn, agent_a: Bottle, approve: Any, how: str
) -> None:
    approve(agent_a)
    plane.stop()
    approve(agent_a, "later.example.com")
    if how == "forgetful":
        plane.live = {}
        plane.start()
    shown = queries.live_routes(agent_a)
    assert (shown["version"], shown["source"]) == (2, "last known")
    assert [route["host"] for route in shown["routes"]] == shown["gate_hosts"] == ["api.example.com"]


def test_a_proxy_that_denies_everything_is_believed(plane: StandIn, agent_a: Bottle, approve: Any) -> None:
    approve(agent_a)
    plane.live["agent-a"] = 0
    shown = queries.live_routes(agent_a)
    assert (shown["version"], shown["source"], shown["gate_hosts"]) == (0, "proxy", [])
