"""The control plane with two egress processes: agent-a is with the first, agent-b with the second."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from botbottle.models import Bottle
from egress.models import ProxyEvent, Publication, RecordCursor, TrafficRecord
from egress.tables import proxy_client, publishing
from egress.tables.proxy_client import ProxyClient, ProxyDown
from egress.traffic import proxy_health, record_import
from egress.traffic.record_import import RecordImport
from supervise import background
from supervise.console import queue_query
from supervise.models import Decision
from supervise.proposals import apply
from tests.support.fake_proxy import StandIn, record

pytestmark = pytest.mark.django_db(transaction=True)
Pair = tuple[StandIn, StandIn]


@pytest.fixture
def pair(home: Path, settings: Any) -> Iterator[Pair]:
    settings.EGRESS_PROXY, settings.EGRESS_PROCESSES = True, 2
    both = StandIn(home, 0), StandIn(home, 1)
    for each in both:
        each.start()
    yield both
    for each in both:
        each.stop()
    assert not proxy_client._open_connections


@pytest.fixture
def reader(pair: Pair, agent_a: Bottle, agent_b: Bottle, clock: list[float]) -> Iterator[RecordImport]:
    """It has read the first run of both."""
    reader = RecordImport()
    take_all(reader)
    clock[0] += record_import.START_SECONDS + record_import.STATUS_SECONDS
    yield reader
    reader.release()


def take_all(reader: RecordImport) -> None:
    """Until nothing new can have been left out."""
    for _ in range(20):
        reader.import_next(publishing.proxy_client(), wait=0)


def news() -> list[tuple[str, str]]:
    return [(event.kind, event.text) for event in ProxyEvent.objects.order_by("pk")]


def live(bottle: Bottle) -> int:
    return Publication.objects.get(bottle=bottle).live_version


def tell(home: Path, processes: int) -> None:
    (home / "run" / "egress.json").write_text(json.dumps({"port": 1, "processes": processes}))


# --- asking


def test_a_bottles_own_process_is_asked(pair: Pair, agent_a: Bottle, agent_b: Bottle) -> None:
    assert [each.live for each in pair] == [{"agent-a": 1}, {"agent-b": 1}]
    assert {slug: publishing.proxy_client().routes(slug)["version"] for slug in ("agent-a", "agent-b")} == {
        "agent-a": 1,
        "agent-b": 1,
    }
    assert set(publishing.proxy_client().status()["bottles"]) == {"agent-a", "agent-b"}


def test_the_proxy_serves_when_all_its_processes_do(pair: Pair) -> None:
    assert publishing.proxy_client().status()["stopping"] is False
    pair[1].stop()
    with pytest.raises(ProxyDown, match=r"^egress process 2 of 2 does not answer \(No such file"):
        publishing.proxy_client().status()


def test_how_many_there_are_is_noticed_after_a_restart(pair: Pair, home: Path, agent_a: Bottle) -> None:
    assert publishing.proxy_client().count == 2
    tell(home, 3)
    assert (publishing.proxy_client().count, publishing.process_of(agent_a)) == (3, 1)
    (home / "run" / "egress.json").unlink()
    assert (publishing.proxy_client().count, publishing.process_of(agent_a)) == (2, 0)


def test_a_process_that_is_away_holds_up_only_its_own_bottles(
    pair: Pair, agent_a: Bottle, agent_b: Bottle, approve: Any
) -> None:
    pair[0].stop()
    made = approve(agent_a), approve(agent_b)
    assert [decision.applied for decision in made] == ["failed", "live"]
    Decision.objects.update(applied="waiting")
    Publication.objects.update(live_version=0)
    for _ in range(5):  # in whatever order they come
        publishing.catch_up()
        assert (live(agent_a), live(agent_b)) == (0, 2)
        Publication.objects.update(live_version=0)
    assert apply.retry_unfinished(at_once=True) == 1
    pair[0].start()
    assert apply.retry_unfinished(at_once=True) == 1
    assert (live(agent_a), live(agent_b)) == (2, 2)


# --- records


def test_records_of_all_are_read(pair: Pair, reader: RecordImport) -> None:
    for each, slug in zip(pair, ("agent-a", "agent-b"), strict=True):
        each.queue = [record(bottle=slug, path=f"/{number}") for number in range(7)]
    take_all(reader)
    found = list(TrafficRecord.objects.order_by("pk").values_list("bottle__slug", "path"))
    for slug in ("agent-a", "agent-b"):
        assert [path for name, path in found if name == slug] == [f"/{number}" for number in range(7)]
    assert sorted(RecordCursor.objects.values_list("process", "number")) == [(0, 7), (1, 7)]
    assert news() == []


def test_another_reader_goes_on_where_the_last_one_was(pair: Pair, reader: RecordImport) -> None:
    for each in pair:
        each.queue = [record()]
    take_all(reader)
    another = RecordImport()
    take_all(another)
    another.release()
    assert (TrafficRecord.objects.count(), news()) == (2, [])


def test_who_has_nothing_to_say_keeps_nobody_waiting(pair: Pair, reader: RecordImport) -> None:
    silence = threading.Event()
    pair[0].reading = lambda: silence.wait(30)
    pair[1].queue = [record(bottle="agent-b", path=f"/{number}") for number in range(9)]
    take_all(reader)
    assert TrafficRecord.objects.count() == 9
    pair[0].queue = [record()]
    silence.set()
    take_all(reader)
    assert TrafficRecord.objects.count() == 10


def test_one_that_hangs_is_away_after_a_while_and_holds_nobody_up(
    pair: Pair, reader: RecordImport, clock: list[float]
) -> None:
    hanging = threading.Event()
    pair[0].reading = lambda: hanging.wait(30)
    for number in range(3):
        pair[1].queue.append(record(bottle="agent-b"))
        take_all(reader)
        assert TrafficRecord.objects.count() == number + 1
        clock[0] += proxy_client.ANSWER_SECONDS + 1
    take_all(reader)
    hanging.set()
    assert [kind for kind, _ in news()] == ["away"]
    assert news()[0][1].startswith("egress process 1 of 2 does not answer (nothing came within 5 s)")


def test_one_that_is_away_is_named_with_its_bottles_and_the_others_are_read_on(
    pair: Pair, reader: RecordImport, clock: list[float]
) -> None:
    pair[0].stop()
    pair[1].queue = [record(bottle="agent-b")]
    take_all(reader)
    assert TrafficRecord.objects.count() == 1
    (kind, text), *more = news()
    assert (kind, more) == ("away", [])
    assert re.fullmatch(
        r"egress process 1 of 2 does not answer \([^)]+\); 'make up' starts it\. "
        r"Bottles that are with it reach nothing: agent-a\. All others do\.",
        text,
    )
    clock[0] += 60
    pair[1].restart("boot-2")
    take_all(reader)
    assert news()[1:] == [("restarted", "egress process 2 of 2 was restarted")]
    assert proxy_health.proxy_news().text == text, "it still is away"
    pair[0].start()
    clock[0] += 60
    take_all(reader)
    assert news()[2:] == [("back", "egress process 1 of 2 answers again")]
    assert proxy_health.absence() is None and queue_query.proxy_state()["label"] != "away"


def test_a_restarted_process_speaks_for_its_own_bottles_only(
    pair: Pair, reader: RecordImport, agent_a: Bottle, agent_b: Bottle
) -> None:
    pair[1].restart("boot-2")
    take_all(reader)
    assert (live(agent_a), live(agent_b)) == (1, 0)


def test_one_that_there_no_longer_is_is_not_missed(pair: Pair, reader: RecordImport, home: Path) -> None:
    pair[1].stop()
    take_all(reader)
    assert proxy_health.absence() is not None
    tell(home, 1)
    take_all(reader)
    assert proxy_health.absence() is None
    pair[1].start()
    tell(home, 2)
    take_all(reader)
    assert [kind for kind, _ in news()] == ["away", "back"]


@pytest.fixture
def seen_elsewhere(settings: Any, tmp_path: Path) -> Callable[[], tuple[str, bool]]:
    """What another home's header says of its own proxy, and whether it has news of an absence."""

    def look() -> tuple[str, bool]:
        here = settings.BOTTLE_HOME, settings.EGRESS_PROXY
        settings.BOTTLE_HOME, settings.EGRESS_PROXY = tmp_path, True
        try:
            told = proxy_health.proxy_news()
            return queue_query.proxy_state()["label"], told is not None and told.kind == "away"
        finally:
            settings.BOTTLE_HOME, settings.EGRESS_PROXY = here

    return look


@pytest.mark.parametrize("is_off", [False, True], ids=["fewer", "off"])
def test_other_homes_hear_of_an_absence_until_the_process_is_no_longer_wanted(
    pair: Pair, reader: RecordImport, settings: Any, seen_elsewhere: Any, is_off: bool
) -> None:
    pair[1].stop()
    take_all(reader)
    background.run_maintenance()
    assert seen_elsewhere() == ("up", True), "it is not that home's proxy"
    assert queue_query.proxy_state()["label"] == "away"
    if is_off:
        settings.EGRESS_PROXY = False
    else:
        tell(pair[0].home, 1)
    for _ in range(2):
        background.run_maintenance()
    assert seen_elsewhere() == ("up", False)
    assert news()[1:] == [("back", "egress process 2 is no longer wanted")]


def test_other_homes_notice_that_nothing_is_heard_of_one(
    pair: Pair, reader: RecordImport, settings: Any, seen_elsewhere: Any
) -> None:
    """Its web process, or the whole machine, died: nobody is left there who would say so."""

    def a_while_ago(seconds: float) -> None:
        RecordCursor.objects.update(heard_at=timezone.now() - timedelta(seconds=seconds))

    assert seen_elsewhere() == ("up", False)
    a_while_ago(proxy_health.SILENCE.total_seconds() - 30)
    assert seen_elsewhere() == ("up", False)
    a_while_ago(proxy_health.SILENCE.total_seconds() + 1)
    assert seen_elsewhere() == ("up", True)
    assert proxy_health.proxy_news() is None, "whoever reads this is not silent"
    take_all(reader)
    assert seen_elsewhere() == ("up", False), "heard of again"
    settings.EGRESS_PROXY = False
    a_while_ago(3600)
    background.run_maintenance()
    assert seen_elsewhere() == ("up", False), "it has no proxy to be heard of"
    assert news() == [], "nobody wrote an event"


def test_a_problem_is_not_shown_while_nobody_knows_whether_it_lasts(
    pair: Pair, reader: RecordImport, clock: list[float], settings: Any
) -> None:
    def shown() -> list[list[str]]:
        return list(Publication.objects.order_by("bottle__slug").values_list("proxy_problems", flat=True))

    def later() -> None:
        clock[0] += record_import.STATUS_SECONDS + 1
        take_all(reader)

    for each, slug in zip(pair, ("agent-a", "agent-b"), strict=True):
        each.problems[slug] = "gate.yaml is missing."
    later()
    pair[1].stop()
    later()
    assert shown() == [["gate.yaml is missing."], []], "of the one that is away nobody knows"
    pair[1].start()
    later()
    background.run_maintenance()
    assert shown() == [["gate.yaml is missing."]] * 2
    settings.EGRESS_PROXY = False
    background.run_maintenance()
    assert shown() == [[], []]


def test_problems_of_all_are_told(pair: Pair, reader: RecordImport, clock: list[float]) -> None:
    for each, slug in zip(pair, ("agent-a", "agent-b"), strict=True):
        each.problems[slug] = "routes.yaml is not YAML. Version 1 stays live."
    for _ in range(3):
        clock[0] += record_import.STATUS_SECONDS + 1
        take_all(reader)
    assert sorted(text for _, text in news()) == [
        "bottle agent-a: routes.yaml is not YAML. Version 1 stays live.",
        "bottle agent-b: routes.yaml is not YAML. Version 1 stays live.",
    ]
    shown = Publication.objects.values_list("proxy_problems", flat=True)
    assert list(shown) == [["routes.yaml is not YAML. Version 1 stays live."]] * 2, "each speaks for its own"


def test_a_long_absence_does_not_outlive_its_end(pair: Pair, settings: Any) -> None:
    """When the news of the return is forgotten, so is that of the absence."""
    for kind in ("away", "back"):
        ProxyEvent.objects.create(kind=kind, text=kind, process=1)
    settings.EGRESS_RECORD_DAYS = 0
    record_import.prune()
    assert news() == []


def test_the_queue_page_shows_which_one_is_away(pair: Pair, reader: RecordImport, olivia: Client) -> None:
    pair[1].stop()
    take_all(reader)
    assert "egress process 2 of 2 does not answer" in olivia.get("/").text


def test_asking_two_at_once_costs_no_threads(pair: Pair) -> None:
    plane = ProxyClient(pair[0].home / "run", 2)
    questions = [process.ask_for_records(boot="", after=0, wait=0) for process in plane.processes()]
    assert [question.answer()["boot"] for question in reversed(questions)] == ["boot-1", "boot-1"]
    for question in questions:
        question.close()
