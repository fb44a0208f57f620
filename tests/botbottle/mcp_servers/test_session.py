"""One session for several clients, and a server's life, against a stand-in for the bottle's pipes."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from botbottle.backends.base import NotRunning, Pipes
from botbottle.core.plan_types import BackendError
from botbottle.manifest.mcp_servers import Spec
from botbottle.mcp_servers import monitor
from botbottle.mcp_servers.clients import Client
from botbottle.mcp_servers.monitor import Condition, Phase, Sandbox, Server
from botbottle.mcp_servers.process import INSTALL
from botbottle.mcp_servers.session import Session


class Wire:
    """A process as far as a session sees it."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.ended = asyncio.Event()
        self.on_message: Callable[[dict[str, Any]], None] = lambda _: None

    async def send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)


@pytest.fixture
async def wire() -> Wire:
    return Wire()


def request(number: Any, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}


async def test_equal_ids_of_two_clients_do_not_meet(wire: Wire) -> None:
    session = Session(wire)  # type: ignore[arg-type]
    told: dict[int, list[dict[str, Any]]] = {1: [], 2: []}
    await session.forward(1, request("x", name="a"), told[1].append)
    await session.forward(2, request("x", name="b"), told[2].append)
    first, second = wire.sent
    assert first["id"] != second["id"]
    session.hear({"jsonrpc": "2.0", "id": second["id"], "result": {"for": "b"}})
    assert (told[1], told[2]) == ([], [{"jsonrpc": "2.0", "id": "x", "result": {"for": "b"}}])


@pytest.mark.parametrize("token", [0, 7, "t"])
async def test_progress_goes_to_who_asked_for_it_with_its_own_token(wire: Wire, token: Any) -> None:
    session = Session(wire)  # type: ignore[arg-type]
    told: list[dict[str, Any]] = []
    await session.forward(1, request(1, _meta={"progressToken": token}), told.append)
    given = wire.sent[0]["params"]["_meta"]["progressToken"]
    progress = {"jsonrpc": "2.0", "method": "notifications/progress"}
    for unknown in (given + 1, [], None, True, {"a": 1}):
        session.hear({**progress, "params": {"progressToken": unknown, "progress": 1}})
    assert told == []
    session.hear({**progress, "params": {"progressToken": given, "progress": 1}})
    assert told[0]["params"] == {"progressToken": token, "progress": 1}


async def test_a_client_cancels_only_its_own(wire: Wire) -> None:
    session = Session(wire)  # type: ignore[arg-type]
    await session.forward(1, request(5), lambda _: None)
    cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 5}}
    await session.forward(2, cancel, lambda _: None)
    assert len(wire.sent) == 1
    await session.forward(1, cancel, lambda _: None)
    assert wire.sent[1]["params"]["requestId"] == wire.sent[0]["id"]


@pytest.mark.parametrize(
    "message",
    [
        {"jsonrpc": "2.0", "id": 99, "result": {}},
        {"jsonrpc": "2.0", "id": "1", "result": {}},
        {"jsonrpc": "2.0", "id": True, "result": {}},
        {"jsonrpc": "2.0", "id": [1], "result": {}},
        {"jsonrpc": "2.0", "id": None, "error": {}},
        {"jsonrpc": "2.0"},
        {"jsonrpc": "2.0", "method": 5, "id": 1},
    ],
)
async def test_answers_to_nothing_are_nobodys(wire: Wire, message: dict[str, Any]) -> None:
    session = Session(wire)  # type: ignore[arg-type]
    told: list[dict[str, Any]] = []
    await session.forward(1, request("mine"), told.append)
    session.listen(1, told.append)
    session.hear(message)
    assert told == []


async def test_the_servers_own_requests_are_refused_and_its_pings_answered(wire: Wire) -> None:
    session = Session(wire)  # type: ignore[arg-type]
    for method in ("ping", "sampling/createMessage"):
        session.hear({"jsonrpc": "2.0", "id": method, "method": method, "params": {}})
    await asyncio.sleep(0)
    assert [("result" in sent, sent["id"]) for sent in wire.sent] == [
        (True, "ping"),
        (False, "sampling/createMessage"),
    ]


@pytest.mark.parametrize(
    ("have", "wanted", "given"),
    [
        ("2025-06-18", "2025-06-18", "2025-06-18"),
        ("2025-06-18", "2024-11-05", "2024-11-05"),
        ("2025-06-18", "2025-11-25", "2025-06-18"),
        ("2025-06-18", "1.0", "2025-06-18"),
        ("2025-06-18", ["a"], "2025-06-18"),
    ],
)
async def test_a_client_is_greeted_in_a_version_it_knows(
    wire: Wire, have: str, wanted: Any, given: str
) -> None:
    session = Session(wire)  # type: ignore[arg-type]
    session.initialized = {"protocolVersion": have, "capabilities": {}, "serverInfo": {}}
    told: list[dict[str, Any]] = []
    hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": wanted}}
    await session.forward(1, hello, told.append)
    assert (told[0]["result"]["protocolVersion"], wire.sent) == (given, [])


# --- the life of a server


class Mute:
    """A backend whose programs say nothing, or that refuses them."""

    def __init__(self, refusal: BackendError | None = None) -> None:
        self.refusal = refusal

    def pipe(self, slug: str, program: str, *arguments: str) -> Pipes:
        if arguments:  # what ends leftovers
            return self._pipes(b"0")
        if self.refusal:
            raise self.refusal
        return self._pipes(b"")

    def _pipes(self, status: bytes) -> Pipes:
        (source, stdin), (stdout, out), (stderr, err), (ended, tell) = (os.pipe() for _ in range(4))
        if status:
            os.write(tell, status)
            for fd in (source, out, err, tell):
                os.close(fd)
        else:
            threading.Timer(3, lambda: [os.close(fd) for fd in (source, out, err, tell)]).start()
        return Pipes(stdin, stdout, stderr, ended)


@pytest.mark.parametrize(
    ("refusal", "phase", "condition"),
    [
        (None, Phase.RELAY_CONNECT, Condition.WAITING),
        (BackendError("the engine is tired"), Phase.PROCESS_START, Condition.WAITING),
        (NotRunning("gone"), Phase.BOX_UNAVAILABLE, Condition.STOPPED),
    ],
)
async def test_a_start_that_fails_says_in_which_phase(
    tmp_path: Path, refusal: BackendError | None, phase: Phase, condition: Condition
) -> None:
    box = Sandbox(Mute(refusal), "b", str(tmp_path), True, (), (), tmp_path)  # type: ignore[arg-type]
    server = Server(Spec("s", "program", startup_timeout=1), box, lambda: None)
    server.begin()
    await asyncio.wait_for(server.tried.wait(), 30)
    assert (server.state.phase, server.state.condition) == (phase, condition)
    assert server.is_over == (phase is Phase.BOX_UNAVAILABLE)
    await server.stop()


async def test_a_server_that_answers_no_ping_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitor, "PING_SECONDS", 0.01)
    box = Sandbox(Mute(), "b", str(tmp_path), True, (), (), tmp_path)  # type: ignore[arg-type]
    server = Server(Spec("s", "program"), box, lambda: None)
    process = monitor.StdioProcess(lambda _: None)
    await process._join(Mute()._pipes(b""))
    server.session = Session(process)
    with pytest.raises(monitor.Failed, match="3 pings") as failed:
        await server._watch()
    assert failed.value.phase is Phase.RUNTIME
    process.close()


async def test_pings_that_are_answered_now_and_then_are_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitor, "PING_SECONDS", 0.01)
    box = Sandbox(Mute(), "b", str(tmp_path), True, (), (), tmp_path)  # type: ignore[arg-type]
    server = Server(Spec("s", "program"), box, lambda: None)
    process = monitor.StdioProcess(lambda _: None)
    server.session = Session(process)
    pings = []

    async def answer_every_third(method: str) -> None:
        pings.append(method)
        if len(pings) == 12:
            process.exit_code = 0
            process.ended.set()
        if len(pings) % monitor.MOST_ERRORS:
            raise TimeoutError

    monkeypatch.setattr(server.session, "request", answer_every_third)
    with pytest.raises(monitor.Failed, match="ended with code 0"):
        await server._watch()
    assert pings == ["ping"] * 12


async def test_starts_that_fail_slowly_are_tried_ever_more_slowly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitor, "STEADY_SECONDS", 0.0)  # every start takes longer
    monkeypatch.setattr(monitor, "FIRST_PAUSE", 0.001)
    box = Sandbox(Mute(BackendError("no")), "b", str(tmp_path), True, (), (), tmp_path)  # type: ignore[arg-type]
    server = Server(Spec("s", "program"), box, lambda: None)
    server.begin()
    async with asyncio.timeout(30):
        while server.state.restarts < 4:
            await asyncio.sleep(0.01)
    assert server._failures == server.state.restarts
    await server.stop()


class Copying(Mute):
    """A backend that copies slowly, into a workspace of this host, and whose installations never end."""

    def __init__(self, workspace: Path) -> None:
        super().__init__()
        self.workspace, self.begun, self.copied = workspace, threading.Event(), threading.Event()

    def pipe(self, slug: str, program: str, *arguments: str) -> Pipes:
        return self._pipes(b"" if program == INSTALL else b"0")

    def copy_in(self, slug: str, source: Path, target: str) -> None:
        self.begun.set()
        time.sleep(0.5)  # as a large tree does
        shutil.copytree(source, self.workspace / Path(target).relative_to("/workspace"))
        self.copied.set()


@pytest.fixture
def copying(tmp_path: Path) -> tuple[Copying, Server]:
    source, workspace = tmp_path / "source", tmp_path / "workspace"
    source.mkdir()
    workspace.mkdir()
    (source / "requirements.txt").write_text("anything\n")
    backend = Copying(workspace)
    box = Sandbox(backend, "b", str(workspace), True, (), (str(tmp_path),), tmp_path)  # type: ignore[arg-type]
    spec = Spec("s", "program", host_path=str(source), startup_timeout=2)
    return backend, Server(spec, box, lambda: None)


async def test_one_that_is_stopped_while_it_is_copied_leaves_no_copy(copying: tuple[Copying, Server]) -> None:
    backend, server = copying
    server.begin()
    assert await asyncio.to_thread(backend.begun.wait, 30)
    await server.stop()
    assert await asyncio.to_thread(backend.copied.wait, 30)
    assert list(backend.workspace.iterdir()) == []


async def test_who_waits_for_an_installation_is_told_that_phase(copying: tuple[Copying, Server]) -> None:
    _, server = copying
    client = Client(SimpleNamespace(), SimpleNamespace(), SimpleNamespace())  # type: ignore[arg-type]
    server.begin()
    told = await client._wait_for(server)
    assert told is not None and told["data"] == {"phase": "dep_install"}
    await server.stop()
