"""Requests on a few threads: owners take turns, none keeps all threads, and a long queue is refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from threading import Event
from typing import Any

import pytest
from asgiref.sync import sync_to_async

from botbottle.web import overload
from botbottle.web.fair_threads import FairThreads
from botbottle.web.overload import ALONE_SECONDS, BEGUN_ALONE, Line, RecentOwners
from botbottle.web.owners import Kind, owner_of, proven_tokens
from botbottle.web.planes import Plane
from botbottle.web.threads import FairRequests
from tests.support.timeouts import PATIENCE

Work = Callable[[], Any]


class Web:
    """The wrapper around an application that does each request's `work` on a thread."""

    def __init__(self, threads: FairThreads) -> None:
        self.requests = FairRequests(self._application, threads)
        self.tasks: list[asyncio.Task[list[Any]]] = []

    async def _application(self, scope: Any, receive: Any, send: Any) -> None:
        await sync_to_async(scope["work"])()
        await send({"type": "http.response.start", "status": 200})
        await sync_to_async(scope["after"])()

    def ask(
        self, bottle: str | None, work: Work, *, after: Work = int, plane: Plane = Plane.RELAY
    ) -> asyncio.Task[list[Any]]:
        headers = [(b"x-bottle-identity", bottle.encode())] if bottle else []
        scope = {
            "type": "http", "method": "POST", "path": "/", "plane": plane, "headers": headers,
            "work": work, "after": after,
        }  # fmt: skip
        task = asyncio.create_task(self._ask(scope))
        self.tasks.append(task)
        return task

    async def _ask(self, scope: dict[str, Any]) -> list[Any]:
        sent = []

        async def send(message: Any) -> None:
            sent.append(message)

        async with asyncio.timeout(PATIENCE):
            await self.requests(scope, None, send)  # type: ignore[arg-type]
        return sent


@pytest.fixture
def gate() -> Iterator[Event]:
    """What a thread waits for that is to stay busy."""
    opened = Event()
    yield opened
    opened.set()


@pytest.fixture
def web() -> Iterator[Web]:
    threads = FairThreads(4, reserved=1, for_one=2)
    yield Web(threads)
    threads.shutdown()


async def all_busy(count: int, web: Web, bottle: str, gate: Event, **options: Any) -> None:
    """So many requests of a bottle have a thread, and keep it until the gate opens."""
    begun = [Event() for _ in range(count)]
    for one in begun:
        web.ask(bottle, lambda one=one: (one.set(), gate.wait(PATIENCE)), **options)
    for one in begun:
        assert await asyncio.to_thread(one.wait, PATIENCE)


async def test_a_bottle_with_much_to_do_leaves_threads_to_others(web: Web, gate: Event) -> None:
    await all_busy(2, web, "greedy", gate)
    waiting = [web.ask("greedy", int) for _ in range(50)]
    await web.ask("modest", int)
    assert not any(task.done() for task in waiting)
    gate.set()
    await asyncio.gather(*web.tasks)


async def test_a_bottle_has_one_thread_while_another_has_work(gate: Event) -> None:
    threads = FairThreads(8, reserved=2, for_one=3)
    web = Web(threads)
    await all_busy(1, web, "other", gate)
    await all_busy(1, web, "greedy", gate)
    second = web.ask("greedy", int)
    await web.ask("modest", int)
    assert not second.done()
    gate.set()
    await asyncio.gather(*web.tasks)
    threads.shutdown()


async def test_a_bottle_alone_has_several_threads(web: Web, gate: Event) -> None:
    await all_busy(1, web, "alone", gate)
    await web.ask("alone", int)
    gate.set()
    await asyncio.gather(*web.tasks)


async def test_operators_have_a_thread_when_agents_keep_all_of_theirs(web: Web, gate: Event) -> None:
    for bottle in ("one", "two", "three"):
        await all_busy(1, web, bottle, gate)
    fourth = web.ask("four", int)
    await web.ask(None, int, plane=Plane.OPERATOR)
    assert not fourth.done()
    gate.set()
    await asyncio.gather(*web.tasks)


async def test_agents_have_a_thread_when_operators_keep_all_of_theirs(web: Web, gate: Event) -> None:
    await all_busy(3, web, "", gate, plane=Plane.OPERATOR)
    await web.ask("agent", int)
    gate.set()
    await asyncio.gather(*web.tasks)


async def test_owners_take_turns_however_much_one_of_them_asks(gate: Event) -> None:
    threads = FairThreads(1, reserved=0, for_one=1)
    web, order = Web(threads), list[str]()
    await all_busy(1, web, "first", gate)
    for bottle in ["flood"] * 5 + ["calm", "quiet"]:
        web.ask(bottle, lambda bottle=bottle: order.append(bottle))
        await asyncio.sleep(0)
    gate.set()
    await asyncio.gather(*web.tasks)
    threads.shutdown()
    assert order == ["flood", "calm", "quiet"] + ["flood"] * 4


async def test_a_request_too_many_is_refused_at_once_and_only_to_its_bottle(
    web: Web, gate: Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(overload.MOST_UNANSWERED, Kind.AGENTS, 5)
    monkeypatch.setattr(overload, "RETRY_AFTER", 0)
    await all_busy(2, web, "greedy", gate)
    queued = [web.ask("greedy", int) for _ in range(3)]
    refused = await web.ask("greedy", int)
    assert (refused[0]["status"], dict(refused[0]["headers"])[b"retry-after"]) == (429, b"0")
    assert json.loads(refused[1]["body"])["error"]["code"] == -32010
    assert (await web.ask("modest", int))[0]["status"] == 200
    gate.set()
    assert [(await task)[0]["status"] for task in queued] == [200] * 3
    assert (await web.ask("greedy", int))[0]["status"] == 200
    await asyncio.gather(*web.tasks)


async def test_a_call_that_has_its_headers_counts_no_longer(
    web: Web, gate: Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(overload.MOST_UNANSWERED, Kind.AGENTS, 1)
    begun = Event()
    web.ask("patient", int, after=lambda: (begun.set(), gate.wait(PATIENCE)))
    assert await asyncio.to_thread(begun.wait, PATIENCE)
    assert (await web.ask("patient", int))[0]["status"] == 200
    gate.set()
    await asyncio.gather(*web.tasks)


async def test_a_cancelled_request_leaves_the_queue(web: Web, gate: Event) -> None:
    await all_busy(2, web, "greedy", gate)
    ran = Event()
    left = web.ask("greedy", ran.set)
    await asyncio.sleep(0)
    left.cancel()
    await asyncio.wait({left}, timeout=PATIENCE)
    gate.set()
    await asyncio.gather(*web.tasks, return_exceptions=True)
    assert not ran.is_set()


async def test_a_server_that_does_not_say_the_plane_serves_nothing() -> None:
    sent = []

    async def send(message: Any) -> None:
        sent.append(message)

    await FairRequests(None)({"type": "http", "headers": []}, None, send)  # type: ignore[arg-type]
    assert sent[0]["status"] == 404


def test_a_token_counts_for_its_bottle_once_it_proved_it() -> None:
    def owner(token: bytes) -> Any:
        return owner_of(Plane.AGENT, "10.0.0.9", [(b"authorization", token)])

    assert owner(b"Bearer made up") == owner(b"Bearer another") == owner_of(Plane.AGENT, "10.0.0.9")
    proven_tokens.remember("Bearer real", "cat")
    try:
        assert owner(b"Bearer real") == owner_of(Plane.RELAY, None, [(b"x-bottle-identity", b"cat")])
        assert owner(b"Bearer real").bottle == "cat"
    finally:
        proven_tokens.forget("Bearer real")
    assert owner(b"Bearer real").bottle is None


def test_only_the_relay_is_believed_about_a_bottle() -> None:
    said = [(b"X-Bottle-Identity", b"cat")]
    assert owner_of(Plane.RELAY, None, said).bottle == "cat"
    assert owner_of(Plane.AGENT, "10.0.0.9", said).bottle is None
    assert owner_of(Plane.RELAY, None, said * 2).bottle is None


def test_one_host_is_one_owner_whatever_its_addresses() -> None:
    assert owner_of(Plane.AGENT, "2001:db8::1") == owner_of(Plane.AGENT, "2001:db8::ffff:2")
    assert owner_of(Plane.AGENT, "2001:db8::1") != owner_of(Plane.AGENT, "2001:db8:0:1::1")
    assert owner_of(Plane.AGENT, "::ffff:10.0.0.9") == owner_of(Plane.AGENT, "10.0.0.9")


# --- How many requests of an owner are begun


async def test_an_owner_has_more_requests_under_way_while_nobody_else_asks() -> None:
    now = 100.0
    recent = RecentOwners(lambda: now)
    alone, other = owner_of(Plane.AGENT, "10.0.0.1"), owner_of(Plane.AGENT, "10.0.0.2")
    recent.record(alone)
    assert recent.most_begun(alone) == BEGUN_ALONE
    recent.record(other)
    recent.record(alone)
    assert recent.most_begun(alone) == recent.most_begun(other) == 1
    now += ALONE_SECONDS + 0.1
    recent.record(alone)
    assert recent.most_begun(alone) == BEGUN_ALONE
    assert recent.most_begun(other) == 1


async def test_who_leaves_the_line_makes_room_and_the_next_one_begins() -> None:
    line, begun = Line(Kind.AGENTS, lambda: 1), list[str]()

    async def come(name: str, leave: asyncio.Event) -> None:
        async with line.turn():
            begun.append(name)
            await leave.wait()

    leave = {name: asyncio.Event() for name in ("first", "second", "third")}
    tasks = {name: asyncio.create_task(come(name, event)) for name, event in leave.items()}
    await asyncio.sleep(0)
    tasks["second"].cancel()
    await asyncio.wait({tasks["second"]})
    assert begun == ["first"]
    leave["first"].set()
    leave["third"].set()
    await asyncio.gather(tasks["first"], tasks["third"])
    assert (begun, line.is_empty) == (["first", "third"], True)
