"""The bottle that fills the disk is stopped, with what it wrote kept; no other one is."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import OperationalError
from django.test import Client

from botbottle.core.disk_space import MIB, Room
from botbottle.database import reserve as database_reserve
from botbottle.models import Bottle
from supervise import audit_check
from supervise.bottles import lifecycle
from supervise.disk import notice
from supervise.disk import watch as disk_watch
from supervise.disk.shares import Share, shares
from supervise.disk.watch import DiskWatch
from supervise.models import AuditEvent
from tests.support.full_disk import AMPLE, SHORT, pretend

pytestmark = pytest.mark.django_db

NEARLY = Room(free=100 * MIB, total=10**12)  # short, not full
MUCH = 64 * MIB
Shares = dict[str, Any]


@pytest.fixture(autouse=True)
def home(settings: Any, tmp_path: Path) -> Path:
    settings.BOTTLE_HOME, settings.BOTTLE_MANIFESTS = tmp_path, tmp_path / "bottles"
    (tmp_path / "run").mkdir()
    return tmp_path


@pytest.fixture(autouse=True)
def reserve(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was done to it. It has tests of its own."""
    done: list[str] = []

    def release() -> bool:
        if done[-1:] == ["released"]:
            return False
        done.append("released")
        return True

    monkeypatch.setattr(database_reserve, "fill", lambda: done.append("kept"))
    monkeypatch.setattr(database_reserve, "release", release)
    return done


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which bottles were stopped, in their order."""
    names: list[str] = []

    def stop(slug: str, **_: Any) -> Bottle:
        names.append(slug)
        Bottle.objects.filter(slug=slug).update(state="stopped")
        return Bottle.objects.get(slug=slug)

    monkeypatch.setattr(lifecycle, "stop", stop)
    return names


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Shares:
    """By bottle: what a measurement finds."""
    found: Shares = {}
    monkeypatch.setattr(disk_watch, "shares", lambda since: [found[slug] for slug in sorted(found)])
    monkeypatch.setattr(disk_watch, "MEASURING_SECONDS", 0.0)
    return found


@pytest.fixture
def look(monkeypatch: pytest.MonkeyPatch) -> Callable[[Room], None]:
    watch = DiskWatch()

    def round_with(room: Room) -> None:
        pretend(monkeypatch, room)
        watch.work()

    return round_with


def share(slug: str, total: int, recent: int = 0, *, runs: bool = True, hides: bool = False) -> Share:
    return Share(slug, runs, total, recent, is_complete=not hides, hides=hides)


def test_the_reserve_is_kept_until_it_is_needed_and_kept_again(
    look: Any, measured: Shares, reserve: list[str]
) -> None:
    for room in (AMPLE, AMPLE, NEARLY, SHORT, Room(200 * MIB, 10**12), AMPLE, AMPLE):
        look(room)
    assert reserve == ["kept", "released", "kept"]


def test_a_reserve_that_cannot_be_released_keeps_no_bottle_from_being_stopped(
    look: Any, measured: Shares, stopped: list[str], agent_a: Bottle, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> bool:
        raise OperationalError("disk I/O error")

    monkeypatch.setattr(database_reserve, "release", fail)
    measured["agent-a"] = share("agent-a", MUCH, MUCH)
    look(SHORT)
    assert stopped == ["agent-a"]


def test_no_reserve_is_made_where_it_would_make_the_disk_short(look: Any, reserve: list[str]) -> None:
    look(Room(128 * MIB + database_reserve.BYTES - 1, 10**12))
    assert reserve == []
    look(Room(128 * MIB + database_reserve.BYTES, 10**12))
    assert reserve == ["kept"]


def test_the_bottle_that_wrote_most_lately_is_stopped_with_a_reason(
    look: Any, measured: Shares, stopped: list[str], agent_b: Bottle, caplog: Any
) -> None:
    measured["agent-a"] = share("agent-a", 50 * MUCH, 10 * MIB)
    measured["agent-b"] = share("agent-b", 2 * MUCH, 2 * MUCH)
    with caplog.at_level(logging.WARNING):
        look(NEARLY)
    assert stopped == ["agent-b"]
    agent_b.refresh_from_db()
    assert agent_b.problem.startswith(
        "Stopped, because the disk was nearly full and this bottle had just written 134 MB. Nothing was"
    )
    event = AuditEvent.objects.latest("seq")
    assert (event.action, event.actor_name, event.bottle_slug) == (
        disk_watch.STOPPED,
        "bot-bottle",
        "agent-b",
    )
    assert event.details == {"written_bytes": 2 * MUCH, "total_bytes": 2 * MUCH}
    assert audit_check.verify()[1] is None
    assert "The disk is nearly full" in caplog.text and "Bottle agent-b: Stopped" in caplog.text


def test_whoever_takes_no_more_is_left_alone_while_the_disk_stays_full(
    look: Any, measured: Shares, stopped: list[str], agent_a: Bottle, agent_b: Bottle
) -> None:
    """What the stopped one wrote is still there, so the disk is as full as before."""
    measured["agent-a"] = share("agent-a", 3 * MUCH, 3 * MUCH)
    measured["agent-b"] = share("agent-b", 2 * MUCH, 2 * MUCH)
    for _ in range(5):
        look(SHORT)
    assert stopped == ["agent-a"]
    measured["agent-a"] = share("agent-a", 3 * MUCH, 3 * MUCH, runs=False)
    measured["agent-b"] = share("agent-b", 2 * MUCH + MUCH - 1, 2 * MUCH)
    look(SHORT)
    assert stopped == ["agent-a"]
    measured["agent-b"] = share("agent-b", 3 * MUCH, 2 * MUCH)
    look(SHORT)
    assert stopped == ["agent-a", "agent-b"], "it goes on taking room"


def test_a_bottle_that_is_started_again_may_take_little(
    look: Any, measured: Shares, stopped: list[str], agent_a: Bottle
) -> None:
    measured["agent-a"] = share("agent-a", 3 * MUCH, 3 * MUCH)
    look(SHORT)
    measured["agent-a"] = share("agent-a", 3 * MUCH + MIB, 3 * MUCH)
    look(SHORT)
    assert stopped == ["agent-a"]


@pytest.mark.parametrize(
    "quiet",
    [share("agent-a", 50 * MUCH), share("agent-a", 9 * MUCH, 9 * MUCH, runs=False), share("agent-a", 0)],
    ids=["large and old", "does not run", "writes elsewhere"],
)
def test_nobody_is_stopped_who_wrote_nothing(
    look: Any, measured: Shares, stopped: list[str], agent_a: Bottle, quiet: Share
) -> None:
    measured["agent-a"] = quiet
    look(SHORT)
    assert stopped == []


def test_whoever_hides_files_is_stopped_on_a_full_disk_when_nobody_else_filled_it(
    look: Any, measured: Shares, stopped: list[str], agent_a: Bottle, agent_b: Bottle
) -> None:
    measured["agent-a"] = share("agent-a", 0, hides=True)
    look(NEARLY)
    assert stopped == []
    measured["agent-b"] = share("agent-b", MUCH, MUCH)
    look(SHORT)
    assert stopped == ["agent-b"]
    measured.pop("agent-b")
    look(SHORT)
    assert stopped == ["agent-b", "agent-a"]
    assert "files that cannot be measured" in Bottle.objects.get(slug="agent-a").problem


def test_a_stop_that_fails_is_told_and_tried_again(
    look: Any, measured: Shares, agent_a: Bottle, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise lifecycle.BackendRefused("somebody else holds it.")

    monkeypatch.setattr(lifecycle, "stop", refuse)
    measured["agent-a"] = share("agent-a", MUCH, MUCH)
    look(SHORT)
    assert "Bottle agent-a fills the disk and cannot be stopped: somebody else holds it." in caplog.text
    look(SHORT)
    assert caplog.text.count("cannot be stopped") == 2


def test_a_bottles_share_is_all_that_it_may_write_to(agent_a: Bottle, home: Path) -> None:
    elsewhere, other = home / "elsewhere", home / "other"
    for directory in (home / "bottles" / "agent-a" / "workspace", elsewhere, other):
        directory.mkdir(parents=True)
        (directory / "file").write_bytes(b"x" * MIB)
    text = f"backend: local\nmounts:\n- {{path: {elsewhere}, target: /data, mode: rw}}\n"
    text += f"- {{path: {other}, target: /opt/other}}\n"
    Bottle.objects.update(manifest=text, state="running")
    (found,) = shares(since=0.0)
    assert (found.slug, found.is_running, found.is_complete, found.hides) == ("agent-a", True, True, False)
    assert 2 * MIB <= found.total < 2.2 * MIB
    assert found.recent == found.total


# --- what operators are told


PAGES = ("/", "/bottles/", "/bottles/agent-a/", "/history/", "/refusals/", "/admin/", "/nowhere/")


def test_every_page_says_why_and_who(
    look: Any, measured: Shares, stopped: list[str], agent_a: Bottle, operator: User
) -> None:
    measured["agent-a"] = share("agent-a", MUCH, MUCH)
    look(SHORT)
    browser = Client()
    browser.force_login(operator)
    for address in PAGES:
        text = browser.get(address).content.decode()
        assert 'id="disk-notice" role="alert"' in text, address
        assert "0 bytes of 10 TB are free" in text
        assert "Bottles that take most of it: agent-a (67.1 MB)." in text
        assert "bottle agent-a, which had just written 67.1 MB" in text
        assert "With 268 MB free, everything continues by itself." in text


def test_whoever_has_not_signed_in_reads_the_cause_and_no_names(
    look: Any, measured: Shares, stopped: list[str], agent_a: Bottle
) -> None:
    measured["agent-a"] = share("agent-a", MUCH, MUCH)
    look(SHORT)
    text = Client().get("/admin/login/").content.decode()
    assert notice.STRANGERS in text
    assert "agent-a" not in text


def test_nothing_is_said_when_there_is_room(
    look: Any, measured: Shares, stopped: list[str], agent_a: Bottle, operator: User
) -> None:
    measured["agent-a"] = share("agent-a", MUCH, MUCH)
    look(SHORT)
    look(AMPLE)
    browser = Client()
    browser.force_login(operator)
    assert "disk-notice" not in browser.get("/").content.decode()
    measured.clear()
    look(SHORT)
    assert "which had just written" not in " ".join(notice.notice()), "that was the last time"


def test_a_damaged_note_of_the_measurement_keeps_the_cause(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, SHORT)
    for text in ("", "{", '{"largest": 3, "stopped": {}}', "[]"):
        (home / "run" / "disk-usage").write_text(text)
        assert notice.notice()[0].startswith("The disk is nearly full")
