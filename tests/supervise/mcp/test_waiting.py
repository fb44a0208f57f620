"""Calls that wait for a human, on the real hub: woken by decisions, bounded in time, nobody left behind."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from mcp_types import methods

from supervise.mcp import streams
from supervise.mcp.jsonrpc import encode
from supervise.mcp.protocol import McpRequest
from supervise.mcp.streams import PendingCall, json_body, sse_body
from supervise.mcp.versions import VERSIONS, era_of
from supervise.models import Proposal
from supervise.proposals import queries
from supervise.proposals.outcomes import Outcome
from supervise.proposals.waiting import WaiterHub
from tests.supervise.mcp.conftest import (
    MODERN,
    PATIENCE,
    Agent,
    ask,
    decide,
    events,
    message,
    modern_message,
    only_proposal,
    read_all,
    someone_waits,
)
from tests.support.database_fault import away

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("waiting_hub"),
]

# --- Answered by a decision


@pytest.mark.parametrize("version", VERSIONS)
async def test_an_approval_wakes_the_call(
    agent: Agent, operator: User, waiting_hub: WaiterHub, version: str
) -> None:
    body, headers = ask(), {"MCP-Protocol-Version": version}
    if version == MODERN:
        body, headers = modern_message("tools/call", ask()["params"])
    response = await agent.apost(body, **headers)
    assert response.headers["Content-Type"] == "text/event-stream"
    assert response.headers["X-Accel-Buffering"] == "no"
    reading = asyncio.create_task(read_all(response))
    await someone_waits(waiting_hub)
    await decide(operator, await only_proposal(), note="go ahead")
    (answer,) = events(await reading)
    assert answer["id"] == 1
    result = answer["result"]
    assert result["content"][0]["text"].startswith("status: approved\nnotes: go ahead\n")
    assert result["isError"] is False
    methods.validate_server_result("tools/call", version, result)
    if version >= "2025-06-18":
        structured = result["structuredContent"]
        assert (structured["status"], structured["not_granted"]) == ("approved", None)
        assert structured["granted"]["host"] == "api.example.com"
        assert isinstance(structured["live_version"], int)
    listed = await sync_to_async(agent.tool)("list-egress-routes")
    assert [route["host"] for route in listed["result"]["structuredContent"]["routes"]] == ["api.example.com"]


async def test_a_modified_ask_says_what_is_applied_now(
    agent: Agent, operator: User, waiting_hub: WaiterHub
) -> None:
    response = await agent.apost(ask(path_allowlist=["/a", "/b"]), **{"MCP-Protocol-Version": "2025-11-25"})
    reading = asyncio.create_task(read_all(response))
    await someone_waits(waiting_hub)
    less = {"host": "api.example.com", "path_allowlist": ["/a"]}
    await decide(operator, await only_proposal(), "modify", payload=less, note="only /a")
    (answer,) = events(await reading)
    text, structured = answer["result"]["content"][0]["text"], answer["result"]["structuredContent"]
    assert text.startswith("status: modified\nnotes: only /a\n")
    assert "operator changed" in text
    assert "granted: " in text
    assert structured["granted"]["path_allowlist"] == ["/a"]
    assert structured["not_granted"] == {"path_allowlist": ["/b"]}
    assert answer["result"]["isError"] is False


async def test_a_rejected_ask_is_an_error_with_the_reason(
    agent: Agent, operator: User, waiting_hub: WaiterHub
) -> None:
    response = await agent.apost(ask(), **{"MCP-Protocol-Version": "2025-11-25"})
    reading = asyncio.create_task(read_all(response))
    await someone_waits(waiting_hub)
    await decide(operator, await only_proposal(), "reject", note="use the mirror")
    (answer,) = events(await reading)
    assert answer["result"]["isError"] is True
    assert answer["result"]["content"][0]["text"].startswith("status: rejected\nnotes: use the mirror\n")
    assert answer["result"]["structuredContent"]["granted"] is None


async def test_a_withdrawal_from_another_request_wakes_the_call(agent: Agent, waiting_hub: WaiterHub) -> None:
    reading = asyncio.create_task(read_all(await agent.apost(ask())))
    await someone_waits(waiting_hub)
    proposal = await only_proposal()
    await sync_to_async(agent.tool)("withdraw-proposal", {"proposal_id": str(proposal.pk)})
    (answer,) = events(await reading)
    assert answer["result"]["content"][0]["text"].startswith("status: withdrawn")


async def test_a_decision_before_the_wait_is_not_lost(agent: Agent, operator: User) -> None:
    response = await agent.apost(ask())
    await decide(operator, await only_proposal())
    (answer,) = events(await read_all(response))
    assert answer["result"]["content"][0]["text"].startswith("status: approved")


async def test_a_bottle_holds_only_so_many_calls(
    agent: Agent, other_agent: Agent, operator: User, waiting_hub: WaiterHub, settings: Any
) -> None:
    settings.SUPERVISE_MAX_WAITING = 1
    first = asyncio.create_task(read_all(await agent.apost(ask(request_id=1))))
    await someone_waits(waiting_hub)
    proposal = await only_proposal()
    (too_many,) = events(await read_all(await agent.apost(ask(request_id=2))))
    assert too_many["result"]["content"][0]["text"].startswith("status: pending")
    elsewhere = asyncio.create_task(read_all(await other_agent.apost(ask(request_id=3))))
    await someone_waits(waiting_hub, 2)
    await decide(operator, proposal)
    assert events(await first)[0]["result"]["content"][0]["text"].startswith("status: approved")
    again = asyncio.create_task(read_all(await agent.apost(ask(request_id=4, host="next.example.com"))))
    await someone_waits(waiting_hub, 2)
    for waiting in (elsewhere, again):
        waiting.cancel()


async def test_the_same_ask_twice_waits_for_one_proposal(
    agent: Agent, operator: User, waiting_hub: WaiterHub
) -> None:
    first = asyncio.create_task(read_all(await agent.apost(ask(request_id=1))))
    second = asyncio.create_task(read_all(await agent.apost(ask(request_id=2))))
    await someone_waits(waiting_hub, 2)
    await decide(operator, await only_proposal())
    answers = [events(await reading)[0] for reading in (first, second)]
    assert [answer["id"] for answer in answers] == [1, 2]
    assert all("status: approved" in answer["result"]["content"][0]["text"] for answer in answers)


async def test_no_thread_is_held_while_calls_wait(
    agent: Agent, operator: User, waiting_hub: WaiterHub
) -> None:
    before = threading.active_count()
    readings = [
        asyncio.create_task(read_all(await agent.apost(ask(f"h{number}.example.com"))))
        for number in range(20)
    ]
    await someone_waits(waiting_hub, 20)
    assert threading.active_count() <= before + 4
    async for proposal in Proposal.objects.all():
        await decide(operator, proposal)
    for reading in readings:
        assert "status: approved" in events(await reading)[0]["result"]["content"][0]["text"]


# --- Truth about what is applied


async def test_a_gate_ask_says_what_the_gate_does(
    agent: Agent, operator: User, waiting_hub: WaiterHub
) -> None:
    arguments = {"failed_url": "https://api.example.com/v1?x=1", "justification": "because"}
    body = message("tools/call", {"name": "pipelock-block", "arguments": arguments})
    reading = asyncio.create_task(read_all(await agent.apost(body)))
    await someone_waits(waiting_hub)
    await decide(operator, await only_proposal())
    text = events(await reading)[0]["result"]["content"][0]["text"]
    assert text.startswith("status: approved")
    assert "gate" in text


async def test_a_capability_ask_says_that_nothing_was_rebuilt(
    agent: Agent, operator: User, waiting_hub: WaiterHub
) -> None:
    arguments = {"dockerfile": "FROM debian:12\nRUN true\n", "justification": "because"}
    body = message("tools/call", {"name": "capability-block", "arguments": arguments})
    reading = asyncio.create_task(read_all(await agent.apost(body)))
    await someone_waits(waiting_hub)
    await decide(operator, await only_proposal())
    text = events(await reading)[0]["result"]["content"][0]["text"]
    assert text.startswith("status: approved")
    assert "not been rebuilt" in text


# --- JSON


@pytest.mark.parametrize("accept", ["application/json", "*/*"])
async def test_a_client_that_reads_only_json_gets_json(
    agent: Agent, operator: User, waiting_hub: WaiterHub, accept: str
) -> None:
    response = await agent.apost(ask(_meta={"progressToken": "p"}), Accept=accept)
    assert response.headers["Content-Type"] == "application/json"
    chunks = aiter(response)
    assert await anext(chunks) == b" "  # the headers are out while the human thinks
    rest = asyncio.create_task(_join(chunks))
    await someone_waits(waiting_hub)
    await decide(operator, await only_proposal())
    answer = json.loads(await rest)
    assert answer["id"] == 1
    assert answer["result"]["content"][0]["text"].startswith("status: approved")


async def _join(chunks: AsyncIterator[bytes]) -> bytes:
    async with asyncio.timeout(PATIENCE):
        return b"".join([chunk async for chunk in chunks])


# --- A stop


async def test_a_stop_is_answered_without_another_look(
    agent: Agent, waiting_hub: WaiterHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of looks would take longer than the stop may."""
    look, looked = queries.aoutcome, asyncio.Event()

    async def look_before_the_stop(proposal_id: str) -> Outcome:
        assert not waiting_hub.draining
        outcome = await look(proposal_id)
        looked.set()
        return outcome

    monkeypatch.setattr(queries, "aoutcome", look_before_the_stop)
    reading = asyncio.create_task(read_all(await agent.apost(ask())))
    await looked.wait()
    waiting_hub.drain()
    (answer,) = events(await reading)
    text = answer["result"]["content"][0]["text"]
    assert text.startswith("status: pending\nnotes: none\n")
    assert "check-proposal" in text
    assert answer["result"]["isError"] is False


async def test_a_decision_told_before_the_stop_is_the_answer(
    agent: Agent, operator: User, waiting_hub: WaiterHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = asyncio.create_task(read_all(await agent.apost(ask())))
    await someone_waits(waiting_hub)
    (waiter,) = next(iter(waiting_hub._waiters.values()))
    monkeypatch.setattr(waiter, "wake", lambda: None)  # the stop comes in the same moment
    await decide(operator, await only_proposal())
    monkeypatch.undo()
    waiting_hub.drain()
    (answer,) = events(await reading)
    assert answer["result"]["content"][0]["text"].startswith("status: approved\n")


# --- Time


async def test_at_the_time_limit_the_ask_stays_queued(agent: Agent, settings: Any) -> None:
    settings.SUPERVISE_RESPONSE_TIMEOUT_SECONDS = 0.05
    response = await agent.apost(ask(), **{"MCP-Protocol-Version": "2025-11-25"})
    (answer,) = events(await read_all(response))
    proposal = await only_proposal()
    assert proposal.status == "pending"
    assert answer["result"]["isError"] is False
    assert answer["result"]["structuredContent"] == {
        "status": "pending",
        "proposal_id": str(proposal.pk),
        "notes": "",
        "granted": None,
        "not_granted": None,
        "live_version": None,
    }
    text = answer["result"]["content"][0]["text"]
    assert text.startswith("status: pending\nnotes: ")
    assert "check-proposal" in text
    assert str(proposal.pk) in text


async def read_until_three(response: Any, sign: bytes, operator: User) -> bytes:
    """The whole answer. The operator approves once the sign of life has come three times."""
    raw = b""
    async with asyncio.timeout(PATIENCE):
        async for chunk in response:
            raw += chunk
            if raw.count(sign) >= 3 and await only_pending():
                await decide(operator, await only_proposal())
    return raw


async def only_pending() -> bool:
    return (await only_proposal()).status == Proposal.Status.PENDING


@pytest.mark.parametrize("version", VERSIONS)
async def test_progress_increases_while_a_call_waits(
    agent: Agent, operator: User, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setattr(streams, "TICK_SECONDS", 0.02)
    body, headers = ask(_meta={"progressToken": "p-7"}), {"MCP-Protocol-Version": version}
    if version == MODERN:
        body, headers = modern_message("tools/call", body["params"])
    response = await agent.apost(body, **headers)
    *progress, answer = events(await read_until_three(response, b"notifications/progress", operator))
    assert {note["method"] for note in progress} == {"notifications/progress"}
    assert {note["params"]["progressToken"] for note in progress} == {"p-7"}
    numbers = [note["params"]["progress"] for note in progress]
    assert all(earlier < later for earlier, later in itertools.pairwise(numbers))
    assert all(("message" in note["params"]) is (version != "2024-11-05") for note in progress)
    for note in progress:
        methods.parse_server_notification(note["method"], version, note["params"])
    assert "status: approved" in answer["result"]["content"][0]["text"]


async def test_without_a_token_only_comments_keep_the_line_open(
    agent: Agent, operator: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "TICK_SECONDS", 0.02)
    raw = await read_until_three(await agent.apost(ask()), b": waiting for an operator\n\n", operator)
    assert raw.startswith(b": ")
    assert len(events(raw)) == 1


async def test_white_space_keeps_a_json_answer_open(
    agent: Agent, operator: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "TICK_SECONDS", 0.02)
    response = await agent.apost(ask(), Accept="application/json")
    raw = await read_until_three(response, b" ", operator)
    assert raw.startswith(b"   ")
    assert json.loads(raw)["result"]


# --- Batches


@pytest.mark.parametrize("accept", ["application/json, text/event-stream", "application/json"])
async def test_a_batch_of_asks_waits_for_all_of_them(
    agent: Agent, operator: User, waiting_hub: WaiterHub, accept: str
) -> None:
    batch = [ask("a.example.com", 1), message("ping", request_id=2), ask("b.example.com", 3)]
    reading = asyncio.create_task(read_all(await agent.apost(batch, Accept=accept)))
    await someone_waits(waiting_hub, 2)
    async for proposal in Proposal.objects.all():
        await decide(operator, proposal)
    raw = await reading
    answers = events(raw) if "event-stream" in accept else json.loads(raw)
    assert sorted(answer["id"] for answer in answers) == [1, 2, 3]


async def test_a_batch_that_is_left_leaves_no_waiter(agent: Agent, waiting_hub: WaiterHub) -> None:
    batch = [ask("a.example.com", 1), ask("b.example.com", 2)]
    reading = asyncio.create_task(read_all(await agent.apost(batch)))
    await someone_waits(waiting_hub, 2)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    assert len(waiting_hub) == 0


# --- Faults, and the log


async def test_a_fault_while_waiting_tells_nothing_but_where_to_look(
    agent: Agent, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(proposal_id: str) -> None:
        raise RuntimeError("password=hunter2")

    monkeypatch.setattr(queries, "aoutcome", broken)
    raw = await read_all(await agent.apost(ask(request_id="x")))
    (answer,) = events(raw)
    assert (answer["id"], answer["error"]["code"]) == ("x", -32603)
    assert "check-proposal" in answer["error"]["message"]
    assert b"hunter2" not in raw
    assert "hunter2" in caplog.text


async def test_a_database_fault_while_waiting_says_the_cause_and_that_the_proposal_stays(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(proposal_id: str) -> None:
        raise away()

    monkeypatch.setattr(queries, "aoutcome", broken)
    (answer,) = events(await read_all(await agent.apost(ask(request_id="x"))))
    assert (answer["id"], answer["error"]["code"]) == ("x", -32010)
    assert answer["error"]["message"] == (
        "The database cannot be reached. The proposal stays as it is. "
        "Call check-proposal to see where it stands. Try again in 5 s."
    )
    assert await Proposal.objects.filter(status="pending").aexists()


async def test_a_waited_call_is_logged_once_at_its_end(
    agent: Agent, waiting_hub: WaiterHub, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    lines: list[str] = []
    monkeypatch.setattr("botbottle.web.access_log.log.info", lines.append)
    reading = asyncio.create_task(read_all(await agent.apost(ask())))
    await someone_waits(waiting_hub)
    assert lines == []
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    settings.SUPERVISE_RESPONSE_TIMEOUT_SECONDS = 0.01
    await read_all(await agent.apost(ask()))
    await asyncio.sleep(0)  # the line is written after the last bytes
    first, second = map(json.loads, lines)
    assert (first["tool"], first["status"], first["client"]) == ("egress-block", 200, "gone")
    assert "client" not in second


# --- Hostile text all the way through


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>",
        "\u202egnp.exe",
        "\x1b[31mred\x07",
        "nul\x00",
        "\ud800 lone",
        "a\r\n\r\ndata: forged",
    ],
)
async def test_hostile_text_comes_back_inert(
    agent: Agent, operator: User, waiting_hub: WaiterHub, text: str
) -> None:
    dockerfile = "FROM debian:12\nLABEL x=1\n"
    arguments = {"dockerfile": dockerfile, "justification": text}
    body = message("tools/call", {"name": "capability-block", "arguments": arguments}, text)
    reading = asyncio.create_task(read_all(await agent.apost(body)))
    await someone_waits(waiting_hub)
    await decide(operator, await only_proposal(), note="fine")
    raw = await reading
    assert raw.isascii()
    (answer,) = events(raw)
    assert answer["id"] == text


def _waiting_call(proposal_id: str, make: Callable[..., McpRequest] = McpRequest) -> PendingCall:
    request = make(era=era_of(MODERN), version=MODERN, method="tools/call", params={}, id=1)
    return PendingCall(
        bottle_id=1, request=request, request_id=1, proposal_id=proposal_id, started=0.0, limit_seconds=0.0
    )


async def test_ready_answers_leave_before_the_wait(agent: Agent) -> None:
    task = await sync_to_async(agent.ask_task)(host="api.example.com", justification="because")
    ready = {"jsonrpc": "2.0", "id": 0, "result": {}}
    stream = sse_body([ready], [_waiting_call(task["taskId"])])
    assert await anext(stream) == b"event: message\ndata: " + encode(ready) + b"\n\n"
    await stream.aclose()
    chunks = [chunk async for chunk in json_body([ready], [_waiting_call(task["taskId"])], is_batch=True)]
    assert [answer["id"] for answer in json.loads(b"".join(chunks))] == [0, 1]


async def test_a_decision_that_nobody_told_is_read_from_the_database(
    agent: Agent, operator: User, waiting_hub: WaiterHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process decided: this one hears that there is something, and not what."""
    monkeypatch.setattr(waiting_hub, "notify", lambda outcome: None)
    reading = asyncio.create_task(read_all(await agent.apost(ask())))
    await someone_waits(waiting_hub)
    await decide(operator, await only_proposal(), note="go ahead")
    (answer,) = events(await reading)
    assert answer["result"]["content"][0]["text"].startswith("status: approved\nnotes: go ahead\n")
