"""Many agents wait on one real server process: each gets exactly its own answer."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from pathlib import Path

import httpx
import pytest

from tests.support.agent import Agent, Operator, crowd
from tests.support.server import RunningServer, running_server, stop
from tests.support.site import command_of
from tests.support.timeouts import wait_until

pytestmark = pytest.mark.process
CALLS = 60


def worker_pids(server: RunningServer) -> list[int]:
    children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text()
    return [int(pid) for pid in children.split() if command_of(int(pid))[-1:] == ["web"]]


def threads_of(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def api_key(server: RunningServer, user: str = "operator") -> str:
    return json.loads(server.manage("apikey", "create", "--user", user, "--name", "tests", "--json"))["key"]


@pytest.fixture(scope="module")
def patient_server(tmp_path_factory):
    home = tmp_path_factory.mktemp("patient")
    with running_server(home, SUPERVISE_RESPONSE_TIMEOUT_SECONDS="300") as server:
        yield server


async def test_many_waiting_calls_each_get_their_own_answer(patient_server) -> None:
    """Decided in random order; some modified, rejected, withdrawn; some clients gone."""
    server = patient_server
    tokens = [server.create_bottle(f"crowd-{number}")["token"] for number in range(4)]
    async with crowd() as client:
        agents = [Agent(client, server.mcp_url, token) for token in tokens]
        operator = Operator(client, server.console_url, api_key(server))
        hosts = [f"h{number}.example.com" for number in range(CALLS)]
        agent_of = {host: agents[number % 4] for number, host in enumerate(hosts)}
        calls = {
            host: asyncio.create_task(agent.ask(host, path_allowlist=["/a", "/b"]))
            for host, agent in agent_of.items()
        }
        pending = {row["host"]: row["id"] for row in await operator.pending(CALLS)}
        assert set(pending) == set(hosts)
        assert all(threads_of(pid) < CALLS for pid in worker_pids(server)), "a call that waits has no thread"

        plan = {
            host: ("approve", "modify", "reject", "withdraw", "gone")[n % 5] for n, host in enumerate(hosts)
        }
        for host in hosts:
            if plan[host] == "gone":
                calls[host].cancel()
        order = random.Random(7).sample(hosts, CALLS)
        await asyncio.gather(
            *(_carry_out(plan[host], host, pending[host], agent_of[host], operator) for host in order)
        )
        for host in hosts:
            if plan[host] != "gone":
                _check(plan[host], host, pending[host], await calls[host])
        await _everything_is_recorded(plan, pending, agent_of)


async def _carry_out(what, host, proposal_id, agent, operator) -> None:
    match what:
        case "approve" | "gone":
            response = await operator.decide(proposal_id, "approve", note=f"yes to {host}")
        case "modify":
            payload = {"host": host, "path_allowlist": ["/a"]}
            response = await operator.decide(proposal_id, "modify", payload=payload, note=f"less for {host}")
        case "reject":
            response = await operator.decide(proposal_id, "reject", note=f"no to {host}")
        case _:
            result = await agent.call("withdraw-proposal", proposal_id=proposal_id)
            assert result["structuredContent"]["status"] == "withdrawn"
            return
    assert response.status_code == 200, response.text


def _check(what, host, proposal_id, answer) -> None:
    assert answer["proposal_id"] == proposal_id
    expected = {"approve": "approved", "modify": "modified", "reject": "rejected", "withdraw": "withdrawn"}
    assert answer["status"] == expected[what]
    if what in {"approve", "modify"}:
        assert answer["granted"]["host"] == host
        assert answer["granted"]["path_allowlist"] == (["/a"] if what == "modify" else ["/a", "/b"])
        assert answer["live_version"] >= 2
    if what != "withdraw":
        assert host in answer["notes"]


async def _everything_is_recorded(plan, pending, agent_of) -> None:
    """Also what nobody heard: the answer of a client that left is kept for it."""
    for host, agent in agent_of.items():
        if plan[host] == "gone":
            result = await agent.call("check-proposal", proposal_id=pending[host])
            assert result["structuredContent"]["status"] == "approved"


async def test_a_decision_by_a_management_command_wakes_the_call(patient_server) -> None:
    server = patient_server
    bottle = server.create_bottle("by-command")
    async with crowd() as client:
        operator = Operator(client, server.console_url, api_key(server))
        call = asyncio.create_task(Agent(client, server.mcp_url, bottle["token"]).ask("command.example.com"))
        [mine] = [row["id"] for row in await operator.pending(1, "by-command")]
        await asyncio.to_thread(server.manage, "proposals", "approve", mine, "--note", "from the shell")
        answer = await call
    assert (answer["status"], answer["notes"]) == ("approved", "from the shell")


async def test_a_killed_worker_is_restarted_and_nothing_asked_is_lost(patient_server) -> None:
    server = patient_server
    bottle = server.create_bottle("survivor")
    async with crowd() as client:
        agent = Agent(client, server.mcp_url, bottle["token"])
        operator = Operator(client, server.console_url, api_key(server))
        call = asyncio.create_task(agent.ask("again.example.com"))
        [row] = await operator.pending(1, "survivor")
        [worker] = worker_pids(server)
        os.kill(worker, signal.SIGKILL)
        with pytest.raises(httpx.HTTPError):
            await call
    wait_until(lambda: _healthy(server), what="the restarted worker")
    async with crowd() as client:
        agent = Agent(client, server.mcp_url, bottle["token"])
        operator = Operator(client, server.console_url, operator.key)
        call = asyncio.create_task(agent.ask("again.example.com"))
        await operator.joined(row["id"])
        response = await operator.decide(row["id"], "approve")
        assert response.status_code == 200
        answer = await call
    assert (answer["status"], answer["proposal_id"]) == ("approved", row["id"])


async def test_stopping_the_server_answers_pending_to_every_waiter(patient_server) -> None:
    """The last one: it ends the server."""
    server = patient_server
    bottle = server.create_bottle("patient")
    async with crowd() as client:
        agent = Agent(client, server.mcp_url, bottle["token"])
        operator = Operator(client, server.console_url, api_key(server))
        calls = [asyncio.create_task(agent.ask(f"s{number}.example.com")) for number in range(20)]
        await operator.pending(20, "patient")
        await asyncio.to_thread(stop, server.process, 30)
        answers = await asyncio.gather(*calls)
    assert {answer["status"] for answer in answers} == {"pending"}
    assert server.process.returncode == 0
    assert not (server.home / ".http.port").exists()


def _healthy(server: RunningServer) -> bool:
    try:
        return httpx.get(server.mcp_url.replace("/mcp", "/health"), timeout=2).status_code == 200
    except httpx.HTTPError:
        return False
