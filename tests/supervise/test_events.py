"""Events: after the commit, to pages and waiting calls, and with nothing in them that an agent wrote."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import SyncToAsync, sync_to_async
from channels.layers import get_channel_layer
from django.contrib.auth.models import User
from django.db import connection, transaction

from botbottle.models import Bottle
from supervise import events, process_work
from supervise.models import Decision
from supervise.proposals import decisions
from tests.support.proposals import ask, ask_image, seen
from tests.support.timeouts import PATIENCE

pytestmark = pytest.mark.django_db(transaction=True)


async def sent_by(group: str, change: Callable[[], Any]) -> list[dict[str, Any]]:
    """What a member of the group receives while the change is made, up to our own last word."""
    layer = get_channel_layer()
    channel = await layer.new_channel("tests")
    await layer.group_add(group, channel)
    await sync_to_async(change)()
    await layer.group_send(group, {"type": "end"})
    received = []
    async with asyncio.timeout(10):
        while (message := await layer.receive(channel))["type"] != "end":
            received.append(message)
    await layer.group_discard(group, channel)
    return received


def kinds(messages: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(message["kind"], message["status"]) for message in messages]


async def test_pages_hear_of_asks_joins_and_decisions(agent_a: Bottle, operator: User) -> None:
    def change() -> None:
        proposal = ask(agent_a)
        ask(agent_a)
        decisions.approve(proposal.pk, actor=operator, seen_digest=seen(proposal))

    messages = await sent_by(events.QUEUE, change)
    assert kinds(messages) == [
        ("filed", "pending"),
        ("joined", "pending"),
        ("decided", "approved"),
        ("live", "approved"),
    ]


async def test_waiting_calls_hear_of_everything_but_the_filing(agent_a: Bottle, operator: User) -> None:
    def change() -> None:
        proposal = ask(agent_a)
        decisions.reject(proposal.pk, actor=operator, seen_digest=seen(proposal), note="No.")

    assert kinds(await sent_by(events.WAITERS, change)) == [("decided", "rejected")]


async def test_a_first_approval_is_told(agent_a: Bottle, operator: User, settings: Any) -> None:
    settings.SUPERVISE_QUORUM = 2

    def change() -> None:
        proposal = ask_image(agent_a)
        decisions.approve(proposal.pk, actor=operator, seen_digest=seen(proposal))

    assert kinds(await sent_by(events.QUEUE, change)) == [("filed", "pending"), ("approval", "pending")]


async def test_an_event_holds_ids_and_no_text_of_the_agents(agent_a: Bottle, operator: User) -> None:
    def change() -> None:
        proposal = ask(agent_a, "sneaky.example.com", why="sneaky words", path_allowlist=["/sneaky"])
        decisions.reject(proposal.pk, actor=operator, seen_digest=seen(proposal), note="sneaky note")

    messages = await sent_by(events.QUEUE, change)
    assert messages
    for message in messages:
        assert set(message) <= {"type", "kind", "id", "status"}
        assert "sneaky" not in str(message)


async def test_what_is_rolled_back_is_not_told(agent_a: Bottle) -> None:
    def change() -> None:
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            ask(agent_a)
            raise ZeroDivisionError

    assert await sent_by(events.QUEUE, change) == []


async def test_nothing_is_told_before_the_commit(
    agent_a: Bottle, operator: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    def send(event: dict[str, Any]) -> None:
        in_transaction.append(connection.in_atomic_block)

    def change() -> None:
        proposal = ask(agent_a)
        decisions.approve(proposal.pk, actor=operator, seen_digest=seen(proposal))

    in_transaction: list[bool] = []
    monkeypatch.setattr(events, "_send", send)
    await sync_to_async(change)()
    assert in_transaction == [False, False, False]


def test_a_broken_layer_does_not_undo_a_decision(
    agent_a: Bottle, approve: Any, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    async def fail(event: dict[str, Any]) -> None:
        raise ConnectionError("no Redis")

    monkeypatch.setattr(events, "_send_to_groups", fail)
    approve(ask(agent_a))
    assert Decision.objects.get().applied == "live"
    assert "sweeper" in caplog.text


def test_a_thread_does_not_wait_for_a_loop_that_has_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server's end waits for its threads: one that has just committed must not wait for the server."""
    loop, committed = asyncio.new_event_loop(), threading.Event()
    monkeypatch.setattr(events, "_loop", loop)

    def work() -> None:
        SyncToAsync.threadlocal.main_event_loop = loop  # as in a thread that serves a request
        SyncToAsync.threadlocal.main_event_loop_pid = os.getpid()
        events.announce_refusals()
        committed.set()

    threading.Thread(target=work, daemon=True).start()
    assert committed.wait(PATIENCE)
    loop.close()


async def test_events_go_over_the_servers_loop_before_any_call_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The in-memory layer's queues belong to that loop: another thread's own loop would not wake it."""
    monkeypatch.setattr(events, "_loop", None)
    for duty in (process_work.BackgroundJobs, process_work.RecordImport, process_work.Sender):
        monkeypatch.setattr(duty, "start", lambda _: started.append(events._loop))
    started: list[Any] = []
    process_work.ProcessWork().start()
    assert set(started) == {asyncio.get_running_loop()}
