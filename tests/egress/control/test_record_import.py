"""Records from the proxy into the database, and what operators hear of the proxy's coming and going."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.utils import timezone

from botbottle.models import Bottle
from egress.models import ProxyEvent, Publication, RecordCursor, TrafficRecord
from egress.tables import homes, publishing
from egress.tables.proxy_client import ProxyDown
from egress.traffic import proxy_health, record_import
from egress.traffic.record_import import RecordImport
from supervise.bottles import records as bottles
from tests.support.fake_proxy import StandIn, record
from tests.support.full_disk import AMPLE, SHORT, pretend

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def reader(plane: StandIn, agent_a: Bottle, clock: list[float]) -> RecordImport:
    """It has read the first run of the proxy once."""
    reader = RecordImport()
    assert take(reader)
    clock[0] += record_import.START_SECONDS + record_import.STATUS_SECONDS
    return reader


def take(reader: RecordImport) -> bool:
    return reader.import_next(publishing.proxy_client(), wait=0)


def news() -> list[tuple[str, str]]:
    return [(event.kind, event.text) for event in ProxyEvent.objects.order_by("pk")]


def kinds() -> list[str]:
    return [kind for kind, _ in news()]


def test_who_wants_to_know_is_told_of_refusals_that_can_be_asked_for(plane: StandIn, agent_a: Bottle) -> None:
    told: list[int] = []
    reader = RecordImport(when_refused=lambda: told.append(TrafficRecord.objects.count()))
    call = {"tool": "egress-block", "arguments": {"host": "no.example.com"}}
    plane.queue = [record(), record(verdict="refused", reason="dlp", finding={"kind": "x", "where": "body"})]
    assert take(reader) and told == []
    plane.queue += [record(verdict="refused", reason="no-route", status=403, ask=call) for _ in range(3)]
    assert take(reader) and told == [5], "once for a batch, when it is in the database"


def test_a_record_is_kept_whole(plane: StandIn, reader: RecordImport, agent_a: Bottle) -> None:
    call = {"tool": "egress-block", "arguments": {"host": "no.example.com", "justification": "x"}}
    finding = {"kind": "github-token", "where": "body"}
    plane.queue = [
        record(warnings=["injection"]),
        record(verdict="refused", reason="no-route", status=403, route=None, first_byte_ms=None, ask=call),
        record(verdict="refused", reason="dlp", finding=finding),
    ]
    assert take(reader)
    allowed, refused, stopped = TrafficRecord.objects.order_by("pk")
    assert (allowed.bottle, allowed.method, allowed.scheme, allowed.host) == (
        agent_a, "GET", "https", "api.example.com",
    )  # fmt: skip
    assert (allowed.path, allowed.route, allowed.table_version, allowed.verdict, allowed.status) == (
        "/v1", "api.example.com", 2, "allowed", 200,
    )  # fmt: skip
    assert (allowed.bytes_out, allowed.bytes_in, allowed.first_byte_ms, allowed.duration_ms) == (
        10, 2000, 1.5, 2.5,
    )  # fmt: skip
    assert allowed.at.isoformat() == "2030-03-17T17:46:40.500000+00:00"
    assert (allowed.ask, allowed.finding, allowed.warnings) == (None, None, ["injection"])
    assert (refused.route, refused.first_byte_ms, refused.ask) == ("", None, call)
    assert stopped.finding == finding


def test_batches_follow_each_other_without_gap_or_repetition(plane: StandIn, reader: RecordImport) -> None:
    plane.queue = [record(path=f"/{number}") for number in range(7)]
    for _ in range(4):
        assert take(reader)
    paths = list(TrafficRecord.objects.order_by("pk").values_list("path", flat=True))
    assert paths == [f"/{number}" for number in range(7)]


def test_another_reader_goes_on_where_the_last_one_was(plane: StandIn, reader: RecordImport) -> None:
    plane.queue = [record(path="/1"), record(path="/2")]
    take(reader)
    plane.queue.append(record(path="/3"))
    take(RecordImport())
    assert TrafficRecord.objects.count() == 3
    assert kinds() == []


def test_a_batch_that_cannot_be_kept_is_read_again(
    plane: StandIn, reader: RecordImport, monkeypatch: pytest.MonkeyPatch
) -> None:
    plane.queue = [record()]
    with monkeypatch.context() as broken:
        broken.setattr(record_import, "_save", lambda batch: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            take(reader)
    assert RecordCursor.objects.get().number == 0
    take(reader)
    assert TrafficRecord.objects.count() == 1


def test_overlong_words_are_cut_not_refused(plane: StandIn, reader: RecordImport) -> None:
    plane.queue = [record(method="M" * 99, host="h" * 999, path="/" * 9999, route="r" * 999, reason="x" * 99)]
    take(reader)
    kept = TrafficRecord.objects.get()
    assert (len(kept.method), len(kept.host), len(kept.path), len(kept.route)) == (32, 255, 1024, 255)


def test_on_a_short_disk_records_are_counted_and_not_kept(
    plane: StandIn, reader: RecordImport, agent_a: Bottle, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept_here = connection.vendor == "sqlite"  # a database elsewhere has its own disk
    plane.queue = [record(), record()]
    pretend(monkeypatch, SHORT)
    assert take(reader)
    lost = 2 if kept_here else 0
    assert (TrafficRecord.objects.count(), RecordCursor.objects.get().lost) == (2 - lost, lost)
    assert news() == [("dropped", "2 records of requests were lost before they could be read")] * kept_here
    pretend(monkeypatch, AMPLE)
    plane.queue.append(record())
    assert take(reader)
    assert TrafficRecord.objects.count() == 3 - lost


def stranger() -> dict[str, Any]:
    return record(bottle="", verdict="refused", reason="who", status=407)


def test_records_of_nobody_are_counted_not_kept(plane: StandIn, reader: RecordImport, root: Client) -> None:
    plane.queue = [stranger(), record(bottle="deleted-long-ago"), record(), stranger()]
    for _ in range(2):
        take(reader)
    assert TrafficRecord.objects.count() == 1
    plane.restart("boot-2")
    plane.queue = [stranger()]
    take(RecordImport())
    assert sum(RecordCursor.objects.values_list("strangers", flat=True)) == 3, "whatever the runs and readers"
    sentence = "Requests that ever came to the proxy&#x27;s TCP port with no or a wrong token: 3."
    for address in ("/admin/egress/trafficrecord/", "/bottles/"):
        assert sentence in root.get(address).text


def test_guessing_tokens_is_news_once_an_hour_with_a_number_that_is_kept_true(
    plane: StandIn, reader: RecordImport, clock: list[float]
) -> None:
    def told(count: int) -> tuple[str, str]:
        where = "at the proxy's TCP port, within an hour"
        return "strangers", f"requests with no or a wrong token {where}: {count}"

    for total in (3, 6, 9):
        plane.queue += [stranger() for _ in range(3)]
        take(reader)
        assert news() == [told(3)], f"{total} came: the number is written once a minute"
    clock[0] += record_import.LOSS_SECONDS + 1
    take(reader)
    assert news() == [told(9)]
    clock[0] += record_import.STRANGERS_SECONDS
    plane.queue += [stranger()]
    take(reader)
    assert news() == [told(9), told(1)]


def test_no_flood_hides_that_the_proxy_was_restarted(
    plane: StandIn, reader: RecordImport, clock: list[float]
) -> None:
    plane.queue = [stranger()]
    take(reader)
    shown = proxy_health.proxy_news()
    assert shown is not None and shown.kind == "strangers"
    plane.restart("boot-2")
    for _ in range(3):
        plane.queue.append(stranger())
        plane.dropped = 5
        take(reader)
        clock[0] += record_import.STRANGERS_SECONDS + 1
    assert kinds()[-1] in ("strangers", "dropped")
    shown = proxy_health.proxy_news()
    assert shown is not None and shown.kind == "restarted"


def test_of_two_bottles_with_one_name_the_younger_gets_the_record(
    plane: StandIn, reader: RecordImport, agent_a: Bottle
) -> None:
    Bottle.objects.filter(pk=agent_a.pk).update(state=Bottle.State.DELETED)
    heir = bottles.create("agent-a", author="tests").bottle
    plane.queue = [record()]
    take(reader)
    assert TrafficRecord.objects.get().bottle == heir


def test_the_last_records_of_a_bottle_stay_its_own_when_another_home_made_one_of_its_name(
    plane: StandIn, reader: RecordImport, agent_a: Bottle
) -> None:
    Bottle.objects.filter(pk=agent_a.pk).update(state=Bottle.State.DELETED)
    namesake = bottles.create("agent-a", author="tests").bottle
    Publication.objects.filter(bottle=namesake).update(home="0" * 32)
    plane.queue = [record()]
    take(reader)
    assert TrafficRecord.objects.get().bottle == agent_a


def test_losses_are_told_at_once_and_then_once_a_minute(
    plane: StandIn, reader: RecordImport, clock: list[float]
) -> None:
    for lost in (5, 3, 4):
        plane.dropped = lost
        take(reader)
    assert news() == [("dropped", "5 records of requests were lost before they could be read")]
    clock[0] += record_import.LOSS_SECONDS + 1
    take(reader)
    assert news()[1:] == [("dropped", "7 records of requests were lost before they could be read")]
    clock[0] += record_import.LOSS_SECONDS + 1
    take(reader)
    assert len(news()) == 2


def test_all_that_was_ever_lost_is_on_the_pages_of_traffic(
    plane: StandIn, reader: RecordImport, clock: list[float], root: Client
) -> None:
    def shown() -> list[bool]:
        sentence = "Records of requests that were ever lost before they could be read: 1,234."
        return [
            sentence in root.get(address).text for address in ("/admin/egress/trafficrecord/", "/bottles/")
        ]

    plane.queue = [record()]
    for plane.dropped in (1000, 234):
        assert shown() == [False, False]
        take(reader)
    plane.restart("boot-2")
    take(RecordImport())
    assert shown() == [True, True], "whatever the runs and readers"


def test_a_first_start_is_no_news(reader: RecordImport) -> None:
    assert news() == []


def test_a_quick_restart_is_told_and_what_went_back_is_noticed(
    plane: StandIn, reader: RecordImport, agent_a: Bottle
) -> None:
    plane.restart("boot-2")
    plane.queue = [record(path="/after")]
    take(reader)
    assert news() == [("restarted", "the egress proxy was restarted")]
    assert Publication.objects.get(bottle=agent_a).live_version == 0, (
        "it has nothing loaded: catch_up goes on"
    )
    assert TrafficRecord.objects.get().path == "/after"
    take(reader)
    assert len(news()) == 1


def test_a_planned_restart_is_no_news(plane: StandIn, reader: RecordImport) -> None:
    plane.stop(planned=True)
    assert not take(reader)
    plane.restart("boot-2")
    assert take(reader)
    assert news() == []
    plane.restart("boot-3")
    assert take(reader)
    assert kinds() == ["restarted"], "this one was not planned"


def test_after_a_planned_stop_the_proxy_is_missed_when_it_does_not_come_back(
    plane: StandIn, reader: RecordImport, clock: list[float]
) -> None:
    plane.stop(planned=True)
    assert not take(reader)
    clock[0] += record_import.START_SECONDS + 1
    assert [take(reader) for _ in range(2)] == [False] * 2
    assert kinds() == ["away"]


def test_an_absence_is_told_once_and_so_is_its_end(plane: StandIn, reader: RecordImport) -> None:
    plane.stop()
    assert [take(reader) for _ in range(3)] == [False] * 3
    assert kinds() == ["away"]
    assert "does not answer (No such file" in news()[0][1]
    assert news()[0][1].endswith("Bottles reach nothing while it is away.")
    plane.restart("boot-2")
    assert take(reader)
    assert news()[1:] == [("back", "the egress proxy answers again")]


def test_it_is_back_also_for_a_reader_that_did_not_see_it_go(plane: StandIn, reader: RecordImport) -> None:
    plane.stop()
    take(reader)
    plane.start()  # the same run: it only did not answer
    take(RecordImport())
    assert kinds() == ["away", "back"]


def test_a_proxy_that_is_still_starting_is_not_away(
    plane: StandIn, agent_a: Bottle, clock: list[float]
) -> None:
    plane.stop()
    starting = RecordImport()
    clock[0] += record_import.START_SECONDS - 1
    take(starting)
    assert kinds() == []
    clock[0] += 2
    take(starting)
    assert kinds() == ["away"]


def test_one_that_has_answered_once_is_away_when_it_no_longer_does(plane: StandIn, agent_a: Bottle) -> None:
    soon_after_the_start = RecordImport()
    assert take(soon_after_the_start)
    plane.stop()
    assert not take(soon_after_the_start)
    assert kinds() == ["away"]


def test_problems_of_bottles_are_told_once_each_until_they_are_over(
    plane: StandIn, reader: RecordImport, clock: list[float]
) -> None:
    def later() -> None:
        clock[0] += record_import.STATUS_SECONDS + 1
        assert take(reader)

    plane.problems["agent-a"] = "routes.yaml is not YAML. Version 1 stays live."
    plane.credential_problems["agent-a"] = ["There is no secret API_TOKEN."]
    for _ in range(3):
        later()
    assert news() == [
        ("problem", "bottle agent-a: There is no secret API_TOKEN."),
        ("problem", "bottle agent-a: routes.yaml is not YAML. Version 1 stays live."),
    ]
    plane.problems.clear()
    later()
    assert len(news()) == 2
    plane.problems["agent-a"] = "routes.yaml is not YAML. Version 1 stays live."
    later()
    assert len(news()) == 3, "it is told again when it comes again"


PAGES = ("/", "/bottles/_strip/", "/bottles/", "/bottles/agent-a/")


def test_a_problem_is_on_the_pages_for_as_long_as_it_lasts(
    plane: StandIn, reader: RecordImport, clock: list[float], olivia: Client
) -> None:
    def shown() -> list[str]:
        clock[0] += record_import.STATUS_SECONDS + 1
        assert take(reader)
        pages = {address: olivia.get(address).text for address in PAGES}
        assert not [page for page in pages.values() if "<b>" in page or "\u202e" in page]
        return [address for address, page in pages.items() if "&lt;b&gt;⟦U+202E⟧ is not YAML." in page]

    assert shown() == []
    plane.problems["agent-a"] = "<b>\u202e is not YAML. Version 1 stays live."
    plane.credential_problems["agent-a"] = ["There is no secret API_TOKEN."]
    assert shown() == list(PAGES)
    plane.dropped = 5
    ProxyEvent.objects.update(at=timezone.now() - timedelta(hours=2))
    assert shown() == list(PAGES), "neither later news nor its age hides it"
    RecordImport().import_next(publishing.proxy_client(), wait=0)
    assert shown() == list(PAGES), "nor another reader"
    plane.problems.clear()
    assert shown() == []
    assert all("There is no secret API_TOKEN." in olivia.get(address).text for address in PAGES)
    plane.live.clear()
    assert shown() == []
    assert Publication.objects.get().proxy_problems == [], "of a bottle that it no longer knows"


def test_the_status_is_not_asked_for_with_every_batch(plane: StandIn, reader: RecordImport) -> None:
    plane.asked.clear()
    for _ in range(5):
        take(reader)
    assert [target for _, target in plane.asked].count("/status") == 1


def test_the_processes_of_two_homes_are_told_apart(
    plane: StandIn, reader: RecordImport, agent_b: Bottle, clock: list[float], settings: Any
) -> None:
    """They share a database, and both have a first process."""

    def take_there() -> bool:
        here, settings.BOTTLE_HOME = settings.BOTTLE_HOME, neighbour.home
        try:
            return take(other)
        finally:
            settings.BOTTLE_HOME = here

    with TemporaryDirectory(prefix="bottle-") as directory:
        neighbour, other = StandIn(Path(directory)), RecordImport()
        neighbour.start()
        (neighbour.home / "home_id").write_text("0" * 32)
        Publication.objects.filter(bottle=agent_b).update(home="0" * 32)
        plane.queue, neighbour.queue = [record(path="/here")], [record(bottle="agent-b", path="/there")]
        for _ in range(3):
            assert take(reader) and take_there()
        assert sorted(TrafficRecord.objects.values_list("path", flat=True)) == ["/here", "/there"]
        assert news() == []
        neighbour.stop()
        clock[0] += record_import.START_SECONDS + 1
        assert not take_there()
    assert kinds() == ["away"]
    shown = proxy_health.proxy_news()
    assert shown is not None and "the egress proxy does not answer" in shown.text
    assert take(reader) and kinds() == ["away"], "this one was never away"


def test_one_reader_per_home(plane: StandIn) -> None:
    first, second = RecordImport(), RecordImport()
    assert first.acquire() and first.acquire()
    assert not second.acquire()
    first.release()
    assert second.acquire()
    second.release()


def test_old_records_are_forgotten_a_batch_at_a_time(
    plane: StandIn, reader: RecordImport, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.EGRESS_RECORD_DAYS = 2
    monkeypatch.setattr(record_import, "PRUNED_AT_ONCE", 3)
    monkeypatch.setattr(record_import, "PRUNED_IN_A_ROUND", 2)
    now = timezone.now()
    ages = [0, 1, *range(3, 11)]
    plane.queue = [record(at=(now - timedelta(days=age)).timestamp(), path=f"/{age}") for age in ages]
    while RecordCursor.objects.get().number < len(ages):
        take(reader)
    assert record_import.prune() == 6
    left = set(TrafficRecord.objects.values_list("path", flat=True))
    assert left == {"/0", "/1", "/3", "/4"}, "the oldest go first"
    assert record_import.prune() == 2
    assert record_import.prune() == 0


def test_old_news_is_forgotten_but_not_that_it_is_away(plane: StandIn, settings: Any) -> None:
    for kind in ("back", "away"):
        ProxyEvent.objects.create(kind=kind, text=kind, home=homes.home_id())
    ProxyEvent.objects.update(at=timezone.now() - timedelta(days=settings.EGRESS_RECORD_DAYS + 1))
    record_import.prune()
    assert kinds() == ["away"]
    assert proxy_health.proxy_news() is not None


def test_an_absence_of_a_home_without_bottles_is_neither_shown_nor_kept(
    plane: StandIn, agent_a: Bottle, agent_b: Bottle, settings: Any
) -> None:
    ProxyEvent.objects.create(kind="away", text="home 0000: does not answer", home="0" * 32)
    assert proxy_health.proxy_news() is None
    Publication.objects.filter(bottle=agent_b).update(home="0" * 32)
    assert proxy_health.proxy_news() is not None
    ProxyEvent.objects.update(at=timezone.now() - timedelta(days=settings.EGRESS_RECORD_DAYS + 1))
    record_import.prune()
    assert kinds() == ["away"], "it has a bottle"
    Bottle.objects.filter(pk=agent_b.pk).update(state=Bottle.State.DELETED)
    record_import.prune()
    assert kinds() == []


@pytest.mark.parametrize(
    ("kind", "minutes", "shown"),
    [("back", 59, True), ("back", 61, False), ("away", 600, True), ("problem", 1, False)],
)
def test_the_queue_page_shows_news_while_it_is_fresh(
    plane: StandIn,
    olivia: Client,
    kind: str,
    minutes: int,
    shown: bool,
) -> None:
    event = ProxyEvent.objects.create(
        kind=kind, text="<b>something</b> about the proxy", home=homes.home_id()
    )
    ProxyEvent.objects.filter(pk=event.pk).update(at=timezone.now() - timedelta(minutes=minutes))
    page = olivia.get("/").text
    assert ("&lt;b&gt;something&lt;/b&gt; about the proxy" in page) is shown
    assert "<b>something" not in page


def test_the_bottles_page_shows_recent_refusals_with_hostile_text_inert(
    plane: StandIn,
    reader: RecordImport,
    agent_a: Bottle,
    root: Client,
) -> None:
    plane.queue = [
        record(path="/fine"),
        record(verdict="refused", reason="no-route", host="evil.example.com", path="/\u202e<script>x"),
    ]
    take(reader)
    page = root.get(f"/admin/botbottle/bottle/{agent_a.pk}/change/").text
    assert "no-route" in page and "https://evil.example.com/" in page
    assert "/fine" not in page
    assert "<script>x" not in page and "\u202e" not in page
    kept = TrafficRecord.objects.get(verdict="refused")
    for address in ("", f"{kept.pk}/change/"):
        listed = root.get(f"/admin/egress/trafficrecord/{address}").text
        assert "evil.example.com" in listed
        assert "<script>x" not in listed and "\u202e" not in listed


def test_filters_find_the_refusals_of_a_reason(plane: StandIn, reader: RecordImport, root: Client) -> None:
    plane.queue = [
        record(host="one.example.com", verdict="refused", reason="no-route"),
        record(host="two.example.com", verdict="refused", reason="path"),
    ]
    take(reader)
    page = root.get("/admin/egress/trafficrecord/?verdict=refused&reason=path").text
    assert "two.example.com" in page and "one.example.com" not in page


def test_the_thread_goes_on_after_a_failure_and_stops_when_told(
    plane: StandIn, agent_a: Bottle, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr(RecordImport, "pause_seconds", 0.01)
    reader, calls = RecordImport(), []

    def import_once(_plane: Any, *, wait: float) -> bool:
        calls.append(wait)
        if len(calls) == 1:
            raise ProxyDown("x")
        reader.stop()
        return True

    monkeypatch.setattr(reader, "import_next", import_once)
    reader._run()
    assert len(calls) == 2
    assert "trying again in a moment" in caplog.text
