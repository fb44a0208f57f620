"""A webhook of the real server: what an agent asks arrives at a real receiver, also one that was down."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.support.agent import Agent, crowd
from tests.support.server import RunningServer, is_running, running_server
from tests.support.timeouts import wait_until
from tests.support.webhook_receiver import Receiver

pytestmark = pytest.mark.process
SET_UP = """
from supervise.webhooks import manage
from supervise.models import Webhook
webhook = Webhook(name="chat", url="{url}", events=["filed"])
manage.put(webhook, secret="a-secret-of-ours-0001", author="tests")
"""


def ask(url: str, token: str, host: str) -> None:
    async def call() -> None:
        async with crowd() as client:
            answer = await Agent(client, url, token).ask(host)
            assert answer["status"] == "pending"

    asyncio.run(call())


def hosts(receiver: Receiver) -> set[str]:
    return {json.loads(body)["host"] for _, _, body in receiver.got}


def kill(server: RunningServer) -> None:
    """The supervisor. None of its children survives that."""
    up = server.process.pid
    wait_until(lambda: "console  http://" in server.log(), what="the start")
    children = [int(pid) for pid in Path(f"/proc/{up}/task/{up}/children").read_text().split()]
    assert len(children) == 2
    server.process.kill()
    server.process.wait()
    wait_until(lambda: not [pid for pid in children if is_running(pid)], what="the children's end")


def test_what_happened_while_the_receiver_and_a_killed_server_were_down_is_told(tmp_path: Path) -> None:
    with Receiver().running() as receiver:
        pass  # it has a port now, and nobody listens there
    quick = {"SUPERVISE_RESPONSE_TIMEOUT_SECONDS": "0.2"}
    with running_server(tmp_path, **quick) as server:
        server.manage("shell", "-c", SET_UP.replace("{url}", receiver.url))
        bottle = server.create_bottle("chatty")
        ask(server.mcp_url, bottle["token"], "one.example.com")
        kill(server)
    with receiver.running(), running_server(tmp_path, **quick) as server:
        ask(server.mcp_url, bottle["token"], "two.example.com")
        wait_until(lambda: len(hosts(receiver)) >= 2, what="both messages")
    assert hosts(receiver) == {"one.example.com", "two.example.com"}  # each at least once
    told = [json.loads(body) for _, _, body in receiver.got]
    assert all(facts["url"].startswith(server.console_url) for facts in told)
