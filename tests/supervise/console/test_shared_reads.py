"""What many pages read at once is read once for each commit, and is never older than the newest one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connections, transaction
from django.utils import timezone

from botbottle.models import Bottle
from supervise.console import shared_reads
from supervise.console.shared_reads import MOST_KEPT, SharedAsyncRead, SharedReads
from supervise.models import Proposal
from tests.support.proposals import ask
from tests.support.threads import together
from tests.support.timeouts import PATIENCE, wait_until

pytestmark = pytest.mark.django_db(transaction=True)


class Hosts:
    """The hosts that were asked for, and how often somebody looked."""

    def __init__(self) -> None:
        self.looks = 0

    def __call__(self) -> set[str]:
        self.looks += 1
        return {proposal.payload["host"] for proposal in Proposal.objects.all()}


@pytest.fixture
def hosts() -> Hosts:
    return Hosts()


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> SharedReads:
    monkeypatch.setattr(shared_reads, "FRESH", timedelta(hours=1))
    return SharedReads()


def elsewhere(deed: Callable[[], Any]) -> Any:
    """In a thread with a connection of its own."""
    (result,) = together([deed])
    assert not isinstance(result, Exception), result
    return result


def test_nothing_is_read_twice_between_two_commits(
    shared: SharedReads, hosts: Hosts, agent_a: Bottle
) -> None:
    ask(agent_a)
    for _ in range(5):
        assert shared.get("hosts", hosts) == {"api.example.com"}
    together([partial(shared.get, "hosts", hosts)] * 5)
    assert hosts.looks == 1


def test_every_commit_is_seen_at_once_whoever_makes_it(
    shared: SharedReads, hosts: Hosts, agent_a: Bottle
) -> None:
    ask(agent_a, "own.example.com")
    assert shared.get("hosts", hosts) == {"own.example.com"}
    elsewhere(partial(ask, agent_a, "other.example.com"))
    assert shared.get("hosts", hosts) == {"own.example.com", "other.example.com"}
    ask(agent_a, "third.example.com")
    assert len(shared.get("hosts", hosts)) == 3


def test_a_change_that_leaves_no_audit_row_is_seen_too(shared: SharedReads, agent_a: Bottle) -> None:
    def joined() -> int:
        return Proposal.objects.get().joined

    for number in range(3):
        ask(agent_a)
        assert shared.get("joined", joined) == number


def test_inside_of_a_transaction_nothing_is_shared(
    shared: SharedReads, hosts: Hosts, agent_a: Bottle
) -> None:
    with transaction.atomic():
        ask(agent_a)
        assert shared.get("hosts", hosts) == {"api.example.com"}
        assert elsewhere(partial(shared.get, "hosts", hosts)) == set()
    assert shared.get("hosts", hosts) == {"api.example.com"}


def test_while_many_write_everybody_sees_what_was_committed_before(
    shared: SharedReads, hosts: Hosts, agent_a: Bottle
) -> None:
    def write_and_read(writer: int) -> None:
        for number in range(5):
            host = f"h{writer}-{number}.example.com"
            ask(agent_a, host)
            assert host in shared.get("hosts", hosts)

    results = together([partial(write_and_read, writer) for writer in range(6)])
    assert results == [None] * 6


class CountedReads(SharedReads):
    asked = 0

    def _place(self, key: Any) -> Any:
        self.asked += 1
        return super()._place(key)


def test_who_asked_before_a_read_began_gets_its_result(agent_a: Bottle) -> None:
    """Also when something was committed meanwhile: it was not yet there when they asked."""
    shared, begun, go_on = CountedReads(), threading.Event(), threading.Event()
    reads: list[int] = []

    def slow() -> int:
        reads.append(len(reads))
        begun.set()
        assert go_on.wait(PATIENCE)
        elsewhere(partial(ask, agent_a, f"h{len(reads)}.example.com"))
        return reads[-1]

    def ask_for_it() -> int:
        try:
            return shared.get("slow", slow)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(5) as pool:
        first = pool.submit(ask_for_it)
        assert begun.wait(PATIENCE)
        late = [pool.submit(ask_for_it) for _ in range(4)]
        wait_until(lambda: shared.asked == 5)
        go_on.set()
        assert first.result(PATIENCE) == 0
        assert [each.result(PATIENCE) for each in late] == [1] * 4


def test_a_read_that_hangs_does_not_hold_up_the_others(
    shared: SharedReads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_reads, "PATIENCE", 0.01)
    with shared._place("slow").lock:
        assert shared.get("slow", lambda: "read by itself") == "read by itself"


def test_a_read_that_fails_is_not_kept(shared: SharedReads) -> None:
    with pytest.raises(ZeroDivisionError):
        shared.get("broken", lambda: 1 // 0)
    assert shared.get("broken", lambda: 1) == 1


def test_what_time_changes_is_read_again_after_a_second(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, now = SharedReads(), timezone.now()
    for seconds, looks in ((0.0, 1), (0.9, 1), (1.1, 2)):
        monkeypatch.setattr(timezone, "now", lambda seconds=seconds: now + timedelta(seconds=seconds))
        shared.get("hosts", hosts)
        assert hosts.looks == looks


def test_it_keeps_only_so_many(shared: SharedReads) -> None:
    for number in range(3 * MOST_KEPT):
        shared.get(number, lambda: None)
    assert len(shared._places) == MOST_KEPT


async def test_tasks_that_ask_at_the_same_time_look_once(hosts: Hosts, agent_a: Bottle) -> None:
    look = SharedAsyncRead(hosts)
    assert await asyncio.gather(*(look.get() for _ in range(20))) == [set()] * 20
    assert hosts.looks == 1
    await sync_to_async(ask)(agent_a)
    assert await look.get() == {"api.example.com"}
    assert hosts.looks == 2


async def test_a_task_that_asks_during_a_look_gets_the_next_one(hosts: Hosts) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow() -> int:
        begun.set()
        assert go_on.wait(PATIENCE)
        hosts()
        return hosts.looks

    look = SharedAsyncRead(slow)
    first = asyncio.create_task(look.get())
    while not begun.is_set():
        await asyncio.sleep(0)
    late = [asyncio.create_task(look.get()) for _ in range(5)]
    await asyncio.sleep(0)
    go_on.set()
    assert await first == 1
    assert await asyncio.gather(*late) == [2] * 5


async def test_a_page_that_closes_takes_nothing_from_the_others(hosts: Hosts) -> None:
    look = SharedAsyncRead(hosts)
    first, second = asyncio.create_task(look.get()), asyncio.create_task(look.get())
    await asyncio.sleep(0)
    first.cancel()
    assert await second == set()
