"""Two operators approve the same proposal at the same moment, from two processes: one decides it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from threading import Barrier
from typing import Any

import httpx
import pytest

from tests.support.server import RunningServer
from tests.support.timeouts import wait_until

pytestmark = pytest.mark.process
OPERATORS = ("olivia", "otto")


@dataclass
class Result:
    won: bool
    message: str  # what the loser is told


class ByCommand:
    """One operator at a terminal: a process of its own, forked when it has to begin."""

    def __init__(self, server: RunningServer, username: str, key: str) -> None:
        self.server, self.username = server, username

    def prepare(self, proposal: dict[str, Any]) -> Callable[[], Result]:
        digest = proposal["review"]["seen_digest"]
        arguments = ["proposals", "approve", proposal["id"], "--as", self.username, "--digest", digest]

        def go() -> Result:
            ended = self.server.command(*arguments)
            assert ended.returncode in {0, 1}, ended.stderr
            return Result(ended.returncode == 0, ended.stderr)

        return go


class ByApi:
    """One operator's script: a process elsewhere, as far as the server can tell."""

    def __init__(self, server: RunningServer, username: str, key: str) -> None:
        self.server, self.key = server, key

    def prepare(self, proposal: dict[str, Any]) -> Callable[[], Result]:
        client = httpx.Client(
            base_url=self.server.console_url, headers={"Authorization": f"Bearer {self.key}"}, timeout=60
        )
        body = {"seen_digest": proposal["review"]["seen_digest"]}

        def go() -> Result:
            with client:
                answer = client.post(f"/api/proposals/{proposal['id']}/approve/", json=body)
            assert answer.status_code in {200, 409}, answer.text
            facts = answer.json()
            if answer.status_code == 409:
                assert (facts["error"], facts["status"]) == ("already_decided", "approved")
                assert facts["decided_by"] in OPERATORS
                assert facts["decided_at"]
            return Result(answer.status_code == 200, facts.get("message", ""))

        return go


@pytest.fixture(scope="module")
def keys(server: RunningServer) -> dict[str, str]:
    made = {}
    for name in OPERATORS:
        server.manage("createsuperuser", "--noinput", "--username", name, "--email", f"{name}@example.com")
        created = server.manage("apikey", "create", "--user", name, "--name", "tests", "--json")
        made[name] = json.loads(created)["key"]
    return made


@pytest.fixture(scope="module")
def token(server: RunningServer) -> str:
    return server.create_bottle("contested")["token"]


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


hosts = (f"contested-{number}.example.com" for number in count())


@pytest.mark.parametrize(
    "ways", [(ByCommand, ByCommand), (ByApi, ByApi), (ByCommand, ByApi)], ids=["commands", "api", "mixed"]
)
def test_one_succeeds_and_the_other_sees_who_decided(
    server: RunningServer,
    keys: dict[str, str],
    token: str,
    *,
    threads: ThreadPoolExecutor,
    ways: tuple[Any, Any],
) -> None:
    host = next(hosts)
    call = threads.submit(_ask, server, token, host)
    proposal = wait_until(lambda: _pending(server, keys["olivia"], host), what="the proposal")
    prepared = [
        way(server, name, keys[name]).prepare(proposal) for way, name in zip(ways, OPERATORS, strict=True)
    ]
    start = Barrier(2, timeout=30)
    racing: list[Future[Result]] = [threads.submit(_at_once, start, go) for go in prepared]
    results = dict(zip(OPERATORS, (future.result(90) for future in racing), strict=True))

    (winner,) = [name for name, result in results.items() if result.won]
    (loser,) = [name for name, result in results.items() if not result.won]
    assert f"Already approved by {winner}." in results[loser].message
    assert call.result(90)["status"] == "approved"
    decided = _get(server, keys["olivia"], f"proposals/{proposal['id']}/")["decision"]
    assert (decided["decided_by"], decided["applied"]) == (winner, "live")
    routes = _get(server, keys["olivia"], "bottles/contested/routes/")["routes"]
    assert [route["host"] for route in routes].count(host) == 1


def _at_once(start: Barrier, go: Callable[[], Result]) -> Result:
    start.wait()
    return go()


def _ask(server: RunningServer, token: str, host: str) -> dict[str, Any]:
    arguments = {"host": host, "justification": "Two operators will say yes."}
    answer = httpx.post(
        server.mcp_url,
        json={
            "jsonrpc": "2.0",
            "id": 1,
            "method": "tools/call",
            "params": {"name": "egress-block", "arguments": arguments},
        },
        headers={
            "Authorization": f"Bearer {token}",
            "MCP-Protocol-Version": "2025-11-25",
            "Accept": "application/json",
        },
        timeout=90,
    )
    assert answer.status_code == 200, answer.text
    return dict(answer.json()["result"]["structuredContent"])


def _get(server: RunningServer, key: str, path: str) -> Any:
    answer = httpx.get(
        f"{server.console_url}/api/{path}", headers={"Authorization": f"Bearer {key}"}, timeout=60
    )
    assert answer.status_code == 200, answer.text
    return answer.json()


def _pending(server: RunningServer, key: str, host: str) -> dict[str, Any] | None:
    lines = _get(server, key, "proposals/?status=pending&bottle=contested")["results"]
    found = [line["id"] for line in lines if line["host"] == host]
    return dict(_get(server, key, f"proposals/{found[0]}/")) if found else None
