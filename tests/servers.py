"""Real servers for tests: bot-bottle, PostgreSQL and Redis, each its own process on a free port or socket."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any
from uuid import UUID

import httpx

from tests.patience import PATIENCE, until_patience_ends
from tests.requirements import require
from tests.warm import ROOT, Warm

WARMING = Lock()
KEPT_VARIABLES = ("PATH", "LANG", "VIRTUAL_ENV")
PENDING = """
select proposal.id
from supervise_proposal proposal join botbottle_bottle bottle on bottle.id = proposal.bottle_id
where bottle.slug = ? and proposal.status = 'pending' order by proposal.created_at
"""


def wait_until(
    condition: Callable[[], Any], *, seconds: float = PATIENCE, what: str = "the condition"
) -> Any:
    """Poll, bounded in time."""
    for _ in until_patience_ends(seconds):
        result = condition()
        if result:
            return result
        time.sleep(0.02)
    raise AssertionError(f"{what} did not come true within {seconds} s")


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


@contextmanager
def running_redis(directory: Path) -> Iterator[str]:
    binary = shutil.which("redis-server")
    require(binary, "redis-server", "apt-get install redis-server")
    directory.mkdir(parents=True)
    port = free_port()
    process = subprocess.Popen(
        [str(binary), "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(directory)],
        stdout=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: _connects(port), what="Redis")
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        stop(process)


def _connects(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def running_postgres(directory: Path) -> Iterator[str]:
    """A throw-away cluster that listens on a Unix socket only."""
    binaries = _postgres_binaries()
    require(binaries, "PostgreSQL", "apt-get install postgresql")
    directory.mkdir(parents=True)
    owner = _unprivileged(directory)
    cluster, sockets = directory / "cluster", directory / "s"
    sockets.mkdir()
    if owner:
        shutil.chown(sockets, owner)
    as_owner: dict[str, Any] = {
        "user": owner,
        "cwd": directory,
        "env": {"PATH": os.environ["PATH"], "LANG": "C"},
    }
    subprocess.run(
        [f"{binaries}/initdb", "-D", str(cluster), "-U", "bottle", "-A", "trust", "-E", "UTF8", "--no-sync"],
        check=True,
        stdout=subprocess.DEVNULL,
        **as_owner,
    )
    options = ["listen_addresses=", "fsync=off", "max_connections=200", "log_min_messages=fatal"]
    process = subprocess.Popen(
        [
            f"{binaries}/postgres",
            "-D",
            str(cluster),
            "-k",
            str(sockets),
            *(f"-c{option}" for option in options),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        **as_owner,
    )
    try:
        ready = ["psql", "-h", str(sockets), "-U", "bottle", "-d", "postgres", "-c", "create database bottle"]
        wait_until(lambda: _succeeds(ready), what="PostgreSQL")
        yield f"postgres://bottle@/bottle?host={sockets}"
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE)


def _succeeds(command: list[str]) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _postgres_binaries() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return found[-1].parent if found else None


def _unprivileged(directory: Path) -> str | None:
    """PostgreSQL refuses to run as root; Debian's package made an account for it."""
    if os.geteuid() != 0:
        return None
    name = pwd.getpwnam("postgres").pw_name
    shutil.chown(directory, name)
    for parent in directory.parents:
        if parent.is_relative_to("/tmp") and parent != Path("/tmp"):
            parent.chmod(parent.stat().st_mode | 0o011)
    return name
