"""One bottle floods a real web process: others are served in their turn, and the console stays open."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests.support.floods import Connection, Kind, Setting, ask, call, open_unix, post
from tests.support.server import RunningServer, running_server
from tests.support.timeouts import PATIENCE, wait_until

pytestmark = pytest.mark.process
LIMIT = 1024
FLOOD = 200
TURNS = 25  # calls of another bottle while the flood goes on
LIST = call("tools/call", name="list-egress-routes", arguments={})


@pytest.fixture(scope="module")
def bounded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A web process that may open 1,024 descriptors."""
    home = tmp_path_factory.mktemp("bounded")
    with running_server(home, "web", before=("prlimit", f"--nofile={LIMIT}:{LIMIT}")) as server:
        yield server


def relay_of(server: RunningServer, slug: str) -> Setting:
    return Setting(Kind.CHEAP, relay=(str(server.home / "run" / "relay.sock"), slug))


def descriptors(server: RunningServer) -> int:
    return len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))


def console_answers(server: RunningServer) -> bool:
    return (
        httpx.get(f"{server.console_url}/admin/login/", timeout=PATIENCE, trust_env=False).status_code == 200
    )


async def test_bottles_are_served_in_turn(bounded: RunningServer) -> None:
    """Counted in answers, not in time: while one bottle is answered once, a flood is answered a few times."""
    for slug in ("flood", "calm"):
        bounded.create_bottle(slug)
    answered, calm = 0, Connection(relay_of(bounded, "calm"))
    hostile = [Connection(relay_of(bounded, "flood")) for _ in range(FLOOD)]

    async def flooding(connection: Connection) -> None:
        nonlocal answered
        while True:
            await connection.send(LIST)
            answered += 1

    floods = [asyncio.create_task(flooding(connection)) for connection in hostile]
    try:
        async with asyncio.timeout(PATIENCE):
            while answered < FLOOD:
                await asyncio.sleep(0.01)
            before = answered
            assert [await calm.send(LIST) for _ in range(TURNS)] == [200] * TURNS
            meanwhile = answered - before
    finally:
        for flood in floods:
            flood.cancel()
        await asyncio.gather(*floods, return_exceptions=True)
        await asyncio.gather(*(connection.end() for connection in [calm, *hostile]))
    assert meanwhile / TURNS < FLOOD / 5


def test_idle_connections_take_no_place_that_others_need(bounded: RunningServer) -> None:
    token = bounded.create_bottle("asks")["token"]
    with ExitStack() as held:
        for number in range(1500):
            idle = held.enter_context(socket.create_connection(("127.0.0.1", bounded.agent_port)))
            if number % 2:
                idle.sendall(b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        answer = httpx.post(
            bounded.mcp_url, json=LIST, headers={"Authorization": f"Bearer {token}"}, timeout=PATIENCE
        )
        assert answer.status_code == 200
        assert console_answers(bounded)
        assert descriptors(bounded) < LIMIT - 128


def test_a_bottle_whose_calls_all_wait_leaves_places_to_others(bounded: RunningServer) -> None:
    for slug in ("waits", "works"):
        bounded.create_bottle(slug)
    with ExitStack() as held:
        answers = [answer(one) for one in waiting_calls(bounded, "waits", 400, held)]
        refused = [one for one in answers if one.startswith(b"HTTP/1.1 429 ")]
        assert len(refused) >= 80
        assert all(b"retry-after" in one.lower() and b"-32010" in one for one in refused)
        assert sum(one.startswith(b"HTTP/1.1 200 ") for one in answers) >= 200
        assert asyncio.run(one_call(bounded, "works")) == 200
        assert console_answers(bounded)
        assert descriptors(bounded) < LIMIT - 128
    wait_until(lambda: descriptors(bounded) < 200, what="the end of the connections")
    assert asyncio.run(one_call(bounded, "waits")) == 200


def test_agents_who_take_all_their_places_leave_the_console_open(bounded: RunningServer) -> None:
    """More calls than the process has descriptors. The rest waits in the kernel's queue for a free place."""
    crowds = [f"crowd-{number}" for number in range(5)]
    for slug in (*crowds, "late"):
        bounded.create_bottle(slug)
    with ExitStack() as held:
        for slug in crowds:
            waiting_calls(bounded, slug, 250, held)
        wait_until(lambda: descriptors(bounded) > LIMIT // 2, what="the agents' places to be taken")
        assert all(console_answers(bounded) for _ in range(10))
        assert descriptors(bounded) < LIMIT - 128
    assert asyncio.run(one_call(bounded, "late")) == 200


def waiting_calls(server: RunningServer, slug: str, number: int, held: ExitStack) -> list[socket.socket]:
    """So many connections of a bottle, each with a call that waits."""
    content = post(ask("same.example.com"), {"X-Bottle-Identity": slug, "Accept": "application/json"})
    connections = []
    for _ in range(number):
        connection = held.enter_context(open_unix(str(server.home / "run" / "relay.sock")))
        connection.settimeout(PATIENCE)
        connection.sendall(content)
        connections.append(connection)
    return connections


def answer(connection: socket.socket) -> bytes:
    """The beginning of it: the end of a refusal through the relay comes later."""
    read = b""
    while b"\r\n\r\n" not in read or (read.startswith(b"HTTP/1.1 429 ") and b"-32010" not in read):
        part = connection.recv(65536)
        assert part, read
        read += part
    return read


async def one_call(server: RunningServer, slug: str) -> int:
    connection = Connection(relay_of(server, slug))
    async with asyncio.timeout(PATIENCE):
        status = await connection.send(LIST)
        await connection.end()
    return status
