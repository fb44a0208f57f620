"""Waits that end without a decision: the server stops, the client goes away, the client cancels."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User

from supervise.events import announce_cancelled
from supervise.mcp.versions import HANDSHAKE_VERSIONS
from supervise.models import Proposal
from supervise.proposals.waiting import WaiterHub
from tests.supervise.mcp.conftest import Agent, ask, decide, events, only_proposal, read_all, someone_waits

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("waiting_hub"),
]


async def test_a_stopping_server_answers_pending(agent: Agent, waiting_hub: WaiterHub) -> None:
    reading = asyncio.create_task(read_all(await agent.apost(ask())))
    await someone_waits(waiting_hub)
    waiting_hub.drain()
    (answer,) = events(await reading)
    assert "status: pending" in answer["result"]["content"][0]["text"]
    assert (await only_proposal()).status == "pending"


@pytest.mark.parametrize("accept", ["text/event-stream", "application/json"])
async def test_a_client_that_goes_leaves_no_waiter_and_its_ask_queued(
    agent: Agent, waiting_hub: WaiterHub, accept: str
) -> None:
    reading = asyncio.create_task(read_all(await agent.apost(ask(), Accept=accept)))
    await someone_waits(waiting_hub)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    assert len(waiting_hub) == 0
    assert (await only_proposal()).status == "pending"


@pytest.mark.parametrize("version", HANDSHAKE_VERSIONS)
async def test_a_cancelled_request_gets_no_response(
    agent: Agent, waiting_hub: WaiterHub, version: str
) -> None:
    reading = asyncio.create_task(read_all(await agent.apost(ask(request_id="r1"))))
    await someone_waits(waiting_hub)
    response = await agent.apost(cancelled("r1"), **{"MCP-Protocol-Version": version})
    assert response.status_code == 202
    assert events(await reading) == []
    assert (await only_proposal()).status == "pending"


async def test_a_cancellation_that_another_worker_got_ends_the_wait(
    agent: Agent, waiting_hub: WaiterHub
) -> None:
    reading = asyncio.create_task(read_all(await agent.apost(ask(request_id="r1"))))
    await someone_waits(waiting_hub)
    bottle_id = (await only_proposal()).bottle_id
    await sync_to_async(announce_cancelled)(bottle_id + 1, "r1")
    await sync_to_async(announce_cancelled)(bottle_id, "r1")
    assert events(await reading) == []


def cancelled(request_id: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": request_id}}


async def test_a_cancelled_json_request_ends_with_an_error(agent: Agent, waiting_hub: WaiterHub) -> None:
    reading = asyncio.create_task(read_all(await agent.apost(ask(), Accept="application/json")))
    await someone_waits(waiting_hub)
    await agent.apost(cancelled(1))
    answer = json.loads(await reading)
    assert (answer["id"], answer["error"]["code"]) == (1, -32000)


@pytest.mark.parametrize("request_id", ["1", 2, None, True, 1.0, [1]])
async def test_a_cancellation_of_anything_else_is_ignored(
    agent: Agent, operator: User, waiting_hub: WaiterHub, request_id: Any
) -> None:
    reading = asyncio.create_task(read_all(await agent.apost(ask())))
    await someone_waits(waiting_hub)
    assert (await agent.apost(cancelled(request_id))).status_code == 202
    await decide(operator, await only_proposal())
    assert "status: approved" in events(await reading)[0]["result"]["content"][0]["text"]


async def test_another_bottle_cannot_cancel_a_call(
    agent: Agent, other_agent: Agent, operator: User, waiting_hub: WaiterHub
) -> None:
    reading = asyncio.create_task(read_all(await agent.apost(ask())))
    await someone_waits(waiting_hub)
    await other_agent.apost(cancelled(1))
    await decide(operator, await only_proposal())
    assert "status: approved" in events(await reading)[0]["result"]["content"][0]["text"]


async def test_a_cancellation_that_could_mean_two_calls_ends_neither(
    agent: Agent, operator: User, waiting_hub: WaiterHub
) -> None:
    readings = [
        asyncio.create_task(read_all(await agent.apost(ask(host, request_id=1))))
        for host in ("a.example.com", "b.example.com")
    ]
    await someone_waits(waiting_hub, 2)
    await agent.apost(cancelled(1))
    async for proposal in Proposal.objects.all():
        await decide(operator, proposal)
    for reading in readings:
        assert "status: approved" in events(await reading)[0]["result"]["content"][0]["text"]
