"""Three web workers on PostgreSQL and Redis: a decision taken by any of them wakes a call on any other."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import httpx
import pytest

from egress.tables.proxy_client import ProxyClient
from tests.processes.test_waiting_calls import api_key
from tests.support.agent import Agent, Operator, crowd
from tests.support.server import RunningServer, running_server
from tests.support.site import post_form

pytestmark = [pytest.mark.process, pytest.mark.services]
CALLS, TEAMS = 42, 3
MAKE_USER = "from django.contrib.auth.models import User; User.objects.create_superuser"
TEAM = {"SUPERVISE_RESPONSE_TIMEOUT_SECONDS": "300", "SECRET_KEY": "one for all machines of this team " * 2}


async def test_calls_over_three_workers_are_decided_through_another(tmp_path, postgres, redis) -> None:
    """Two of them share the ports of one supervisor; the third is on a machine of its own."""
    shared = {**TEAM, "DATABASE_URL": postgres, "REDIS_URL": redis}
    with (
        running_server(tmp_path / "w1", **shared, WEB_WORKERS="2") as first,
        running_server(tmp_path / "w2", "web", **shared) as other,
    ):
        machines = [first, other]
        tokens = [first.create_bottle(f"team-{number}")["token"] for number in range(TEAMS)]
        key = api_key(first)
        async with crowd() as client:
            calls = {}
            for number in range(CALLS):
                agent = Agent(client, machines[number % 2].mcp_url, tokens[number // 2 % TEAMS])
                calls[f"h{number}.example.com"] = asyncio.create_task(agent.ask(f"h{number}.example.com"))
            operators = [Operator(client, machine.console_url, key) for machine in machines]
            pending = {row["host"]: row["id"] for row in await operators[0].pending(CALLS)}
            assert set(pending) == set(calls)

            async def decide(host: str) -> None:
                number = int(host[1:].split(".", maxsplit=1)[0])
                verb = "reject" if number % 7 == 0 else "approve"
                response = await operators[(number + 1) % 2].decide(pending[host], verb, note=host)
                assert response.status_code == 200, response.text

            await asyncio.gather(*map(decide, random.Random(3).sample(sorted(calls), CALLS)))
            for host, call in calls.items():
                answer = await call
                number = int(host[1:].split(".")[0])
                assert answer["proposal_id"] == pending[host]
                assert answer["notes"] == host
                assert answer["status"] == ("rejected" if number % 7 == 0 else "approved")
                assert (answer["live_version"] is None) == (number % 7 == 0)
            agent = Agent(client, first.mcp_url, tokens[0])
            assert (await _cancelled(agent, "late.example.com"))["error"]["code"] == -32000
        _what_was_approved_is_live_at_the_proxy(first.home)
        _a_session_holds_on_every_worker(first, [other])


def _what_was_approved_is_live_at_the_proxy(home: Path) -> None:
    """Whoever decided: the workers without a proxy wrote nothing and vouched for nothing."""
    plane = ProxyClient(home / "run", 1)
    live = [route["host"] for team in range(TEAMS) for route in plane.routes(f"team-{team}")["routes"]]
    assert sorted(live) == sorted(f"h{number}.example.com" for number in range(CALLS) if number % 7)


def _a_session_holds_on_every_worker(first: RunningServer, others: list[RunningServer]) -> None:
    first.manage("shell", "-c", f"{MAKE_USER}('tessa', password='correct-horse-battery')")
    with httpx.Client(base_url=first.console_url, follow_redirects=True, timeout=60) as browser:
        post_form(browser, "/admin/login/", username="tessa", password="correct-horse-battery", next="/")
        for worker in (*others, first):  # a cookie does not know ports
            page = browser.get(f"{worker.console_url}/history/")
            assert page.url.path == "/history/", page.url


def test_a_machine_of_a_team_with_a_signing_key_of_its_own_is_refused(tmp_path, postgres) -> None:
    with (
        pytest.raises(AssertionError, match=r"Set SECRET_KEY, or SECRET_KEY_FILE, to the same value"),
        running_server(tmp_path / "home", "web", DATABASE_URL=postgres),
    ):
        pass


def test_many_workers_need_a_shared_layer(tmp_path) -> None:
    """WEB_WORKERS=2 without Redis is refused at start, with what to do."""
    with (
        pytest.raises(AssertionError, match=r"waits in another worker\. Set REDIS_URL"),
        running_server(tmp_path / "home", WEB_WORKERS="2"),
    ):
        pass


async def _cancelled(agent: Agent, host: str) -> dict[str, Any]:
    """What a client that cancels is told. Each message goes to any of the workers."""
    headers = {"Authorization": f"Bearer {agent.token}", "Accept": "application/json"}
    arguments = {"host": host, "justification": "tests need it"}
    asking = {"jsonrpc": "2.0", "id": "r1", "method": "tools/call"}
    asking["params"] = {"name": "egress-block", "arguments": arguments}
    cancelling = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "r1"}}
    call = asyncio.create_task(agent.client.post(agent.url, json=asking, headers=headers, timeout=240))
    async with asyncio.timeout(240):
        while not call.done():
            await agent.client.post(agent.url, json=cancelling, headers=headers)
            await asyncio.sleep(0.2)
    return dict((await call).json())
