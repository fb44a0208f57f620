"""An agent that speaks MCP to the real view, synchronously or while it waits."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.test import AsyncClient, Client

from botbottle.models import Bottle
from supervise.bottles import records as bottles
from supervise.models import Proposal
from supervise.proposals import decisions, queries
from supervise.proposals.waiting import WaiterHub, hub

MODERN = "2026-07-28"
TASKS = {"extensions": {"io.modelcontextprotocol/tasks": {}}}
BOTH = "application/json, text/event-stream"


def message(method: str, params: Any = None, request_id: Any = 1) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "method": method, "params": {} if params is None else params}


def modern_message(
    method: str, params: dict[str, Any] | None = None, request_id: Any = 1, capabilities: Any = None
) -> tuple[dict[str, Any], dict[str, str]]:
    """A 2026-07-28 request and the headers that must go with it."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientCapabilities": capabilities or {},
    }
    params = params or {}
    body = message(method, {**params, "_meta": {**params.get("_meta", {}), **meta}}, request_id)
    headers = {"MCP-Protocol-Version": MODERN, "Mcp-Method": method}
    name = params.get("name", params.get("taskId"))
    if name is not None:
        headers["Mcp-Name"] = name
    return body, headers


class PlaneClient(AsyncClient):
    """Django's, on the agent plane and with only the Host that the test gives."""

    def _base_scope(self, **request: Any) -> dict[str, Any]:
        scope: dict[str, Any] = super()._base_scope(**request)
        headers = [header for header in scope["headers"] if header != (b"host", b"testserver")]
        return {**scope, "headers": headers, "plane": "agent"}


# One of each for all tests: a new client loads the console's whole middleware, which agents never see.
CLIENT = Client(plane="agent")
WAITING_CLIENT = PlaneClient()


@dataclass
class Agent:
    bottle: Bottle
    token: str
    host: str = "127.0.0.1:9100"
    defaults: dict[str, str] = field(default_factory=dict)

    def headers(self, more: dict[str, str] | None = None) -> dict[str, str]:
        return {
            "Host": self.host,
            "Authorization": f"Bearer {self.token}",
            "Accept": BOTH,
            **self.defaults,
            **(more or {}),
        }

    def post(self, body: Any, path: str = "/mcp", **headers: str) -> Any:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        content_type = headers.pop("Content-Type", "application/json")
        return Client(plane="agent").post(
            path, data, content_type=content_type, headers=self.headers(headers)
        )

    def call(self, method: str, params: Any = None, version: str = "2025-11-25", request_id: Any = 1) -> Any:
        """One request in one version; the response's JSON."""
        if version == MODERN:
            body, headers = modern_message(method, params, request_id)
        else:
            body, headers = message(method, params, request_id), {"MCP-Protocol-Version": version}
        return self.post(body, **headers).json()

    def tool(self, name: str, arguments: Any = None, version: str = "2025-11-25") -> Any:
        return self.call("tools/call", {"name": name, "arguments": arguments or {}}, version)

    def ask_task(self, name: str = "egress-block", **arguments: Any) -> Any:
        """File an ask without waiting for it: the result is a task whose id is the proposal's."""
        params = {"name": name, "arguments": arguments}
        body, headers = modern_message("tools/call", params, capabilities=TASKS)
        return self.post(body, **headers).json()["result"]

    def task_method(self, method: str, **params: Any) -> Any:
        body, headers = modern_message(method, params, capabilities=TASKS)
        return self.post(body, **headers).json()

    async def apost(self, body: Any, **headers: str) -> Any:
        return await WAITING_CLIENT.post(
            "/mcp", json.dumps(body), content_type="application/json", headers=self.headers(headers)
        )


def ask(host: str = "api.example.com", request_id: Any = 1, **more: Any) -> dict[str, Any]:
    meta = more.pop("_meta", {})
    arguments = {"host": host, "justification": "to run the tests", **more}
    return message("tools/call", {"name": "egress-block", "arguments": arguments, "_meta": meta}, request_id)


PATIENCE = 20  # seconds; only a broken wake-up ever takes them


@sync_to_async
def decide(operator: User, proposal: Proposal, verb: str = "approve", **more: Any) -> None:
    digest = queries.review_of(queries.get_proposal(proposal.pk)).seen_digest
    getattr(decisions, verb)(proposal.pk, actor=operator, seen_digest=digest, **more)


async def only_proposal() -> Proposal:
    return await Proposal.objects.aget()


async def someone_waits(hub: WaiterHub, number: int = 1) -> None:
    async with asyncio.timeout(PATIENCE):
        while len(hub) < number:
            await asyncio.sleep(0.005)


def events(raw: bytes) -> list[dict[str, Any]]:
    """The messages of an event stream; comments are skipped as clients do."""
    found = []
    for block in raw.decode().split("\n\n"):
        lines = [line for line in block.split("\n") if line and not line.startswith(":")]
        if lines:
            assert lines[0] == "event: message"
            assert lines[1].startswith("data: ")
            assert len(lines) == 2
            found.append(json.loads(lines[1].removeprefix("data: ")))
    return found


async def read_all(response: Any) -> bytes:
    async with asyncio.timeout(PATIENCE):
        return b"".join([chunk async for chunk in response])


@pytest.fixture
def agent(db: None) -> Agent:
    credentials = bottles.create("agent-a", author="tests")
    return Agent(credentials.bottle, credentials.token)


@pytest.fixture
def other_agent(db: None) -> Agent:
    credentials = bottles.create("agent-b", author="tests")
    return Agent(credentials.bottle, credentials.token)


@pytest.fixture
async def waiting_hub() -> AsyncIterator[WaiterHub]:
    """The real hub, on the test's loop; nobody is left waiting when the test ends."""
    yield hub
    assert len(hub) == 0, "a waiter was left behind"
    hub.draining = False
    await hub.stop()
