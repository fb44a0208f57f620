"""PostgreSQL stops and starts again under a real server: every edge says so, and then everything works."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import pytest

from tests.processes.test_waiting_calls import api_key
from tests.support.databases import Postgres, postgres_cluster
from tests.support.floods import ask, call
from tests.support.server import RunningServer, running_server
from tests.support.timeouts import PATIENCE, wait_until

pytestmark = [pytest.mark.process, pytest.mark.services]
REASON = "The database cannot be reached."


@pytest.fixture
def cluster() -> Iterator[Postgres]:
    with TemporaryDirectory(prefix="bottle-") as directory, postgres_cluster(Path(directory) / "pg") as own:
        yield own


@pytest.fixture
def server(cluster: Postgres, tmp_path: Path) -> Iterator[RunningServer]:
    # A call that waits answers soon: it must not outlast the test.
    limits = {"SUPERVISE_RESPONSE_TIMEOUT_SECONDS": "1"}
    with running_server(tmp_path / "home", DATABASE_URL=cluster.url, **limits) as server:
        yield server


def test_every_edge_says_that_the_database_is_away(cluster: Postgres, server: RunningServer) -> None:
    began = time.monotonic()
    token, key = server.create_bottle("agent")["token"], api_key(server)
    agent = httpx.Client(headers={"Authorization": f"Bearer {token}"}, timeout=PATIENCE, trust_env=False)
    operator = httpx.Client(base_url=server.console_url, timeout=PATIENCE, trust_env=False)
    with agent, operator:
        assert agent.post(server.mcp_url, json=ask("before.example.com")).status_code == 200
        cluster.stop()
        answers = {
            "mcp": agent.post(server.mcp_url, json=ask("during.example.com")),
            "rpc": agent.post(server.mcp_url.replace("/mcp", "/rpc"), json={"method": "tools/list"}),
            "context": agent.get(server.mcp_url.replace("/mcp", "/session-context")),
            "api": operator.get("/api/proposals/", headers={"Authorization": f"Bearer {key}"}),
            "page": operator.get("/", headers={"Cookie": f"bot_bottle_session={'x' * 32}"}),
        }
        for edge, answer in answers.items():
            assert (edge, answer.status_code) == (edge, 503)
            assert int(answer.headers["Retry-After"]) > 0
            assert REASON in answer.text
            assert "Nothing was changed." in answer.text
            is_page = answer.headers["Content-Type"].startswith("text/html")
            assert is_page is (edge == "page") or answer.json()
        assert agent.get(server.mcp_url.replace("/mcp", "/health")).text == "ok"
        cluster.start()
        wait_until(
            lambda: agent.post(server.mcp_url, json=call("tools/list")).status_code == 200,
            what="the answer after the database came back",
        )
        scripted = {"Authorization": f"Bearer {key}"}
        pages = [operator.get("/api/proposals/", headers=scripted) for _ in range(20)]
        assert {page.status_code for page in pages} == {200}
        assert [row["host"] for row in pages[0].json()["results"]] == ["before.example.com"]
    log = server.log()
    assert "Traceback" not in log
    minutes = 1 + (time.monotonic() - began) // 60
    assert 1 <= log.count(REASON) <= minutes
