"""A stop, planned or not: every call is answered, no decision is lost, and no process stays behind."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

import httpx
import pytest

from tests.support.agent import Agent, Operator, crowd
from tests.support.server import RunningServer, is_running, running_server
from tests.support.site import api_key, signed_in
from tests.support.timeouts import PATIENCE, until_patience_ends, wait_until
from tests.support.waiting_calls import HELD, WITHOUT_FILING, WaitingCalls, raise_file_limit

pytestmark = pytest.mark.process
AGENTS, OPERATORS = 12, 3
DECISIONS = 15  # before the stop
CALLS = 500


@dataclass
class Load:
    """Agents that ask and wait, operators who decide and look at the queue, until the server is gone."""

    server: RunningServer
    client: httpx.AsyncClient
    told: dict[str, str] = field(default_factory=dict)  # what operators were answered, by proposal

    def start(self) -> list[asyncio.Task[None]]:
        key = api_key(self.server)
        with signed_in(self.server) as browser:
            cookie = "; ".join(f"{name}={value}" for name, value in browser.cookies.items())
        tokens = [self.server.create_bottle(f"agent-{number}")["token"] for number in range(AGENTS)]
        work = [self._agent(token) for token in tokens]
        work += [self._operator(number, key, cookie) for number in range(OPERATORS)]
        return [asyncio.create_task(each) for each in work]

    async def _agent(self, token: str) -> None:
        agent = Agent(self.client, self.server.mcp_url, token)
        with suppress(httpx.HTTPError, AssertionError):  # the server stops
            for number in itertools.count():
                await agent.ask(f"h{number}.example.com")

    async def _operator(self, number: int, key: str, cookie: str) -> None:
        operator = Operator(self.client, self.server.console_url, key)
        verb, status = ("reject", "rejected") if number else ("approve", "approved")
        with suppress(httpx.HTTPError):
            while True:
                waiting = await operator.pending(1)
                chosen = waiting[number * len(waiting) // OPERATORS]["id"]
                answer = await operator.decide(chosen, verb, note="fine")
                if answer.status_code == 200:
                    self.told[chosen] = status
                await self._load_the_queue(cookie)

    async def _load_the_queue(self, cookie: str) -> None:
        page = await self.client.get(
            f"{self.server.console_url}/", headers={"Cookie": cookie}, timeout=PATIENCE
        )
        page.raise_for_status()


def family(pid: int) -> Iterator[int]:
    """The process and all below it."""
    yield pid
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            yield from family(int(child))


def statuses(home: Path) -> dict[str, str]:
    with closing(sqlite3.connect(home / "bot-bottle.sqlite3", timeout=30)) as database:
        rows = database.execute("select id, status from supervise_proposal")
        return {str(UUID(number)): status for number, status in rows}


@pytest.mark.parametrize(
    ("command", "sent"),
    [("web", signal.SIGTERM), ("up", signal.SIGTERM), ("up", signal.SIGKILL)],
    ids=["web stopped", "up stopped", "up killed"],
)
async def test_under_load_nothing_stays_behind_and_no_decision_is_lost(
    tmp_path: Path, command: str, sent: signal.Signals
) -> None:
    with running_server(tmp_path / "h", command, **HELD) as server:
        async with crowd() as client:
            load = Load(server, client)
            working = load.start()
            for _ in until_patience_ends():
                if len(load.told) >= DECISIONS:
                    break
                await asyncio.sleep(0.05)
            members = list(family(server.process.pid))
            os.kill(server.process.pid, sent)
            await asyncio.to_thread(
                wait_until, lambda: not any(map(is_running, members)), what="the end of every process"
            )
            await asyncio.gather(*working)
        assert len(load.told) >= DECISIONS
        recorded = statuses(server.home)
        assert {each: recorded[each] for each in load.told} == load.told
        server.manage("verify_audit")
        assert (server.home / "run" / "egress-0.stopped").exists() is (command == "up")
    assert "is killed" not in server.log()
    assert "events.py" not in server.log(), "the stop had to be enforced: a thread waited for the loop"


async def test_every_waiting_call_is_answered_at_a_stop(tmp_path: Path) -> None:
    """`python -m tests.support.waiting_calls 10000` shows it with as many as that."""
    raise_file_limit()
    with running_server(tmp_path / "h", "web", program=WITHOUT_FILING, **HELD) as server:
        calls = WaitingCalls(server, server.create_bottle("held")["token"])
        await calls.grow(CALLS)
        answers = asyncio.create_task(calls.answers())
        server.process.send_signal(signal.SIGTERM)
        assert await answers == {"pending": CALLS}
        await asyncio.to_thread(server.process.wait, PATIENCE)
        assert not (server.home / ".http.port").exists()
