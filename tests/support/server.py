"""A running bot-bottle for tests: its processes, its command line and its database."""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any
from uuid import UUID

import httpx

from tests.support import ROOT
from tests.support.forkserver import Warm
from tests.support.timeouts import wait_until

WARMING = Lock()
KEPT_VARIABLES = ("PATH", "LANG", "VIRTUAL_ENV")
PENDING = """
select proposal.id
from supervise_proposal proposal join botbottle_bottle bottle on bottle.id = proposal.bottle_id
where bottle.slug = ? and proposal.status = 'pending' order by proposal.created_at
"""


@dataclass
class RunningServer:
    home: Path
    environment: dict[str, str]
    process: subprocess.Popen[str]
    agent_port: int
    console_port: int
    _warm: Warm | None = None

    @property
    def mcp_url(self) -> str:
        return f"http://127.0.0.1:{self.agent_port}/mcp"

    @property
    def console_url(self) -> str:
        return f"http://127.0.0.1:{self.console_port}"

    @property
    def password(self) -> str:
        return (self.home / "operator.txt").read_text().split("password: ")[1].strip()

    def manage(self, *arguments: str, check: bool = True) -> str:
        finished = self.command(*arguments)
        if check and finished.returncode != 0:
            raise AssertionError(f"manage.py {arguments} failed: {finished.stderr}")
        return finished.stdout

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """By a manage.py that has been started already: a start of its own costs a second."""
        with WARMING:
            if self._warm is None:
                self._warm = Warm(self.environment)
        return self._warm.run(arguments)

    def close(self) -> None:
        if self._warm is not None:
            self._warm.close()
        stop(self.process)

    def create_bottle(self, slug: str) -> dict[str, str]:
        return json.loads(self.manage("bottle", "create", slug, "--json"))

    def pending(self, slug: str) -> list[str]:
        """Which proposals of a bottle wait, for polling: a command takes a second to start."""
        with closing(sqlite3.connect(self.home / "bot-bottle.sqlite3", timeout=30)) as database:
            return [str(UUID(number)) for (number,) in database.execute(PENDING, [slug])]

    def log(self) -> str:
        return (self.home / "server.log").read_text()


@contextmanager
def running_server(home: Path, command: str = "up", **variables: str) -> Iterator[RunningServer]:
    """`manage.py up` (or `web`) as a user would start it, stopped by its own id."""
    home.mkdir(parents=True, exist_ok=True)
    environment = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    environment |= {
        "BOTTLE_HOME": str(home),
        "SUPERVISE_PORT": "0",
        "CONSOLE_PORT": "0",
        "EGRESS_PORT": "0",
        "EGRESS_PROXY": "1" if command == "up" else "0",  # `web` alone has no proxy at its side
        "EGRESS_PROCESSES": "1",  # each more costs a start half a second; the browser's server has the usual
        "HOME": str(home),
        **variables,
    }
    # What a killed server left here would lead us to its last worker, which is about to end.
    (home / ".http.port").unlink(missing_ok=True)
    with (home / "server.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "manage.py", command],
            cwd=ROOT,
            env=environment,
            text=True,
            stdout=log,
            stderr=log,
        )
    server = RunningServer(home, environment, process, agent_port=0, console_port=0)
    try:
        ports = wait_until(lambda: _ports(home, process), what="the server's start")
        server.agent_port, server.console_port = ports["agent"], ports["console"]
        yield server
    finally:
        server.close()


def _ports(home: Path, process: subprocess.Popen[str]) -> dict[str, int] | None:
    if process.poll() is not None:
        raise AssertionError(f"the server ended: {(home / 'server.log').read_text()}")
    try:
        ports = json.loads((home / ".http.port").read_text())
        return ports if httpx.get(f"http://127.0.0.1:{ports['agent']}/health").text == "ok" else None
    except (OSError, ValueError, httpx.HTTPError):
        return None


def stop(process: subprocess.Popen[Any], seconds: float = 15) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def is_running(pid: int) -> bool:
    """One that nobody has waited for yet is not."""
    return state_of(pid) not in ("", "Z")


def state_of(pid: int) -> str:
    """By its letter; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
