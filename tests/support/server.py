"""A running bot-bottle for tests: its processes, its command line and its database."""

from __future__ import annotations

import fcntl
import functools
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
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
# What `up` does first in an empty home. Its own migrations then find nothing to do.
PREPARE = """
import os
os.umask(0o077)
import django
django.setup()
from django.core.management import call_command
from supervise.management.commands.up import Command
call_command("migrate", verbosity=0, interactive=False)
Command()._first_operator(quietly=True)
"""
PREPARED = ("bot-bottle.sqlite3", "operator.txt")
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
        return pending(self.home, slug)

    def log(self) -> str:
        return (self.home / "server.log").read_text()


@contextmanager
def running_server(
    home: Path,
    command: str = "up",
    *,
    before: Sequence[str] = (),
    program: str = "manage.py",
    **variables: str,
) -> Iterator[RunningServer]:
    """`manage.py up` (or `web`) as a user would start it, stopped by its own id.

    `before` is a command that becomes the server, as `prlimit` does.
    """
    home.mkdir(parents=True, exist_ok=True)
    if "DATABASE_URL" not in variables:
        prepare(home)
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
            [*before, sys.executable, program, command],
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


def pending(home: Path, slug: str) -> list[str]:
    with closing(sqlite3.connect(home / "bot-bottle.sqlite3", timeout=30)) as database:
        return [str(UUID(number)) for (number,) in database.execute(PENDING, [slug])]


def prepare(home: Path) -> None:
    """Gives a new home a migrated database with its first operator: a copy costs two seconds less."""
    if (home / PREPARED[0]).exists():
        return
    template = _shared_directory(home) / "template"
    with template.with_name("template.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not template.exists():
            _make_template(template)
    home.chmod(0o700)
    for name in PREPARED:
        shutil.copy(template / name, home / name)


def _make_template(template: Path) -> None:
    unfinished = template.with_name("template.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    environment = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    environment |= {"BOTTLE_HOME": str(unfinished), "DJANGO_SETTINGS_MODULE": "botbottle.settings"}
    subprocess.run([sys.executable, "-c", PREPARE], cwd=ROOT, env=environment, check=True)
    unfinished.rename(template)


def _shared_directory(home: Path) -> Path:
    """The directory of the test run, if all workers of pytest-xdist have one; else one of this process."""
    workers = [parent for parent in home.parents if parent.name.startswith("popen-gw")]
    return workers[0].parent if workers else Path(_own_directory().name)


@functools.cache
def _own_directory() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="bottle-template-")


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
