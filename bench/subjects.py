"""The two servers that are measured, behind one face: ask, see what is pending, look at it, decide it.

Each runs as real processes on loopback in a directory of its own, and is stopped by its own process ids.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import struct
import subprocess
import sys
import time
import urllib.request
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

from bench.wire import NO_HEADERS, Connection, request

ROOT = Path(__file__).resolve().parent.parent
START_SECONDS = 90.0
WAIT_SECONDS = "900"  # longer than any run: no call may end by itself
META = "io.modelcontextprotocol"
TASKS = {"extensions": {f"{META}/tasks": {}}}
KEPT_VARIABLES = ("PATH", "LANG", "VIRTUAL_ENV")
# Bottles and an operator's key, made in one process instead of one command each.
PREPARE = """
import django, json, sys
django.setup()
from django.contrib.auth.models import User
from supervise.access import api_keys
from supervise.bottles import records
tokens = [records.create(f"bench-{number}", author="bench").token for number in range(int(sys.argv[1]))]
print(json.dumps({"tokens": tokens, "key": api_keys.create(User.objects.get(), "bench")}))
"""


class Verb(StrEnum):
    APPROVE = "approve"
    REJECT = "reject"

    @property
    def status(self) -> str:
        return "approved" if self is Verb.APPROVE else "rejected"


class Moments(NamedTuple):
    """By the wall clock, each just before others can see it."""

    decided: float
    settled: float  # what was decided is also in force: all that the answer tells is true


class Subject(ABC):
    """A running server. `start(directory, bottles)` starts one of them, for a `with` statement."""

    name: str
    agent_port: int
    operator_port: int
    agent_headers: Mapping[str, str] = {}

    def ask(self, host: str) -> bytes:
        arguments = {"host": host, "justification": "The build needs a package from there."}
        return self._agent_post("tools/call", {"name": "egress-block", "arguments": arguments})

    def list_tools(self) -> bytes:
        return self._agent_post("tools/list", {})

    def _agent_post(
        self, method: str, params: Mapping[str, Any], more: Mapping[str, str] = NO_HEADERS
    ) -> bytes:
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        headers = {"Accept": "application/json, text/event-stream", **self.agent_headers, **more}
        return request("POST", "/mcp", message, headers)

    @abstractmethod
    def pending(self) -> dict[str, str]:
        """Host asked for → proposal id, of everything that waits for a decision."""

    @abstractmethod
    def pending_count(self) -> int: ...

    @abstractmethod
    async def look(self, operator: Connection, proposal_id: str, verb: Verb) -> bytes:
        """What an operator does before deciding; returns the request that then decides."""

    @abstractmethod
    def moments(self, answers: Mapping[str, Any]) -> dict[str, Moments]:
        """By proposal id, when it was decided; `answers` are what the operator got back."""

    @abstractmethod
    def processes(self) -> list[int]:
        """Every process that belongs to the server."""


class BotBottle(Subject):
    """`manage.py up`, as a user starts it: SQLite, in-memory layer, one web process."""

    name = "bot-bottle"

    def __init__(self, home: Path, process: subprocess.Popen[str], bottles: int) -> None:
        self.home, self._process = home, process
        ports = json.loads((home / ".http.port").read_text())
        self.agent_port, self.operator_port = ports["agent"], ports["console"]
        self._database = sqlite3.connect(f"file:{home / 'bot-bottle.sqlite3'}?mode=ro", uri=True, timeout=20)
        prepared = _prepare(home, bottles)
        self._tokens = prepared["tokens"]
        self._operator_headers = {"Authorization": f"Bearer {prepared['key']}", "Accept": "application/json"}
        self._asked = 0

    def _agent_post(
        self, method: str, params: Mapping[str, Any], more: Mapping[str, str] = NO_HEADERS
    ) -> bytes:
        self._asked += 1
        token = self._tokens[self._asked % len(self._tokens)]  # as many agents, not one that asks for all
        self.agent_headers = {"Authorization": f"Bearer {token}", "MCP-Protocol-Version": "2025-11-25"}
        return super()._agent_post(method, params, more)

    def file(self, host: str) -> bytes:
        """An ask whose call takes a task for an answer, so that it ends when the proposal is committed."""
        name, version = "egress-block", "2026-07-28"
        meta = {f"{META}/protocolVersion": version, f"{META}/clientCapabilities": TASKS}
        arguments = {"host": host, "justification": "The build needs a package from there."}
        params = {"name": name, "arguments": arguments, "_meta": meta}
        headers = {"Mcp-Method": "tools/call", "Mcp-Name": name, "MCP-Protocol-Version": version}
        return self._agent_post("tools/call", params, headers)

    def pending(self) -> dict[str, str]:
        rows = self._database.execute("select payload, id from supervise_proposal where status = 'pending'")
        return {json.loads(payload)["host"]: str(UUID(key)) for payload, key in rows}

    def pending_count(self) -> int:
        counted = self._database.execute("select count(*) from supervise_proposal where status = 'pending'")
        return int(counted.fetchone()[0])

    async def look(self, operator: Connection, proposal_id: str, verb: Verb) -> bytes:
        path = f"/api/proposals/{proposal_id}/"
        shown = await operator.send(request("GET", path, headers=self._operator_headers))
        decision = {"seen_digest": shown.json()["review"]["seen_digest"], "note": "bench"}
        return request("POST", f"{path}{verb}/", decision, self._operator_headers)

    def moments(self, answers: Mapping[str, Any]) -> dict[str, Moments]:
        """When the transactions with the audit rows of the decision, and of its being live, were committed.

        Each held the database's write lock since before its row's time, so the next commit is its own.
        """
        rows = self._database.execute(
            "select proposal_id, min(at), max(at) from supervise_auditevent "
            "where action in ('approved', 'rejected', 'live') "
            f"and proposal_id in ({','.join('?' * len(answers))}) group by proposal_id",
            [UUID(proposal_id).hex for proposal_id in answers],
        )
        commits = [moment for (moment,) in struct.iter_unpack("d", (self.home / "commits").read_bytes())]
        return {
            str(UUID(key)): Moments(*(commits[bisect_left(commits, _timestamp(at))] for at in moments))
            for key, *moments in rows
        }

    def processes(self) -> list[int]:
        return _with_descendants(self._process.pid)

    @classmethod
    @contextmanager
    def start(cls, home: Path, bottles: int) -> Iterator[BotBottle]:
        home.mkdir()
        with (home / "server.log").open("w") as log:
            process = subprocess.Popen(
                [sys.executable, "manage.py", "up"], cwd=ROOT, env=environment(home), text=True,
                stdout=log, stderr=log,
            )  # fmt: skip
        try:
            _wait_for_health(home, process)
            yield cls(home, process, bottles)
        finally:
            stop([process])


class Baseline(Subject):
    """bench/baseline.py: one process for the agents, one for the operator."""

    name = "baseline"

    def __init__(self, directory: Path, roles: list[subprocess.Popen[str]]) -> None:
        self._directory = directory
        self._processes = [role.pid for role in roles]
        self.agent_port, self.operator_port = map(_printed_port, roles)

    def pending(self) -> dict[str, str]:
        found = {}
        for path in self._directory.glob("*.proposal.json"):
            proposal = json.loads(path.read_text())
            found[proposal["host"]] = proposal["id"]
        return found

    def pending_count(self) -> int:
        return sum(path.name.endswith(".proposal.json") for path in self._directory.iterdir())

    async def look(self, operator: Connection, proposal_id: str, verb: Verb) -> bytes:
        return request("POST", "/decide", {"id": proposal_id, "status": verb.status, "note": "bench"})

    def moments(self, answers: Mapping[str, Any]) -> dict[str, Moments]:
        return {key: Moments(answer["decided_at"], answer["decided_at"]) for key, answer in answers.items()}

    def processes(self) -> list[int]:
        return self._processes

    @classmethod
    @contextmanager
    def start(cls, directory: Path, bottles: int) -> Iterator[Baseline]:
        directory.mkdir()
        command = [sys.executable, str(Path(__file__).with_name("baseline.py"))]
        started = [
            subprocess.Popen(
                [*command, role, str(directory)],
                env=environment(directory),
                text=True,
                stdout=subprocess.PIPE,
            )
            for role in ("agents", "operator")
        ]
        try:
            yield cls(directory, started)
        finally:
            stop(started)


def _with_descendants(pid: int) -> list[int]:
    """The proxy's processes are children of its own parent."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(each for child in children for each in _with_descendants(int(child)))]


def environment(home: Path) -> dict[str, str]:
    kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    return kept | {
        "HOME": str(home),
        "BOTTLE_HOME": str(home),
        "DJANGO_SETTINGS_MODULE": "bench.timed_settings",
        "SUPERVISE_PORT": "0",
        "CONSOLE_PORT": "0",
        "EGRESS_PORT": "0",
        "SUPERVISE_RESPONSE_TIMEOUT_SECONDS": WAIT_SECONDS,
        "SUPERVISE_MAX_PENDING": "100000",
        "SUPERVISE_MAX_PER_MINUTE": "1000000",
    }


def _prepare(home: Path, bottles: int) -> dict[str, Any]:
    finished = subprocess.run(
        [sys.executable, "-c", PREPARE, str(bottles)], cwd=ROOT, env=environment(home), text=True,
        stdout=subprocess.PIPE, check=True, timeout=300,
    )  # fmt: skip
    prepared: dict[str, Any] = json.loads(finished.stdout)
    return prepared


def _wait_for_health(home: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        try:
            port = json.loads((home / ".http.port").read_text())["agent"]
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2):
                return
        except (OSError, ValueError):
            time.sleep(0.05)
    raise SystemExit(f"bot-bottle did not start: {(home / 'server.log').read_text()}")


def _printed_port(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    return int(process.stdout.readline())


def stop(processes: Iterable[subprocess.Popen[str]]) -> None:
    for process in processes:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout:
            process.stdout.close()


def _timestamp(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
