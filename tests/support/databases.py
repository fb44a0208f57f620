"""PostgreSQL and Redis for tests: throw-away servers, each a process of its own."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.requirements import require
from tests.support.server import stop
from tests.support.timeouts import PATIENCE, wait_until


@contextmanager
def running_redis(directory: Path) -> Iterator[str]:
    binary = shutil.which("redis-server")
    require(binary, "redis-server", "apt-get install redis-server")
    directory.mkdir(parents=True)
    address = directory / "s"
    process = subprocess.Popen(
        [str(binary), "--port", "0", "--unixsocket", str(address), "--save", "", "--dir", str(directory)],
        stdout=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: _connects(address), what="Redis")
        yield f"unix://{address}?db=0"
    finally:
        stop(process)


def _connects(address: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(address)) == 0


@dataclass
class Postgres:
    """A throw-away cluster that listens on a Unix socket only; it can be stopped and started."""

    binaries: Path
    directory: Path
    owner: str | None
    _process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"postgres://bottle@/bottle?host={self.directory / 's'}"

    def start(self) -> None:
        options = ["listen_addresses=", "fsync=off", "max_connections=200", "log_min_messages=fatal"]
        cluster, sockets = self.directory / "cluster", self.directory / "s"
        command = [f"{self.binaries}/postgres", "-D", str(cluster), "-k", str(sockets)]
        self._process = subprocess.Popen(
            [*command, *(f"-c{option}" for option in options)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            **self.as_owner,
        )
        wait_until(lambda: _succeeds(self.psql("postgres", "select 1")), what="PostgreSQL")

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(PATIENCE)
            self._process = None

    def psql(self, database: str, statement: str) -> list[str]:
        sockets = str(self.directory / "s")
        return ["psql", "-h", sockets, "-U", "bottle", "-d", database, "-c", statement]

    @property
    def as_owner(self) -> dict[str, Any]:
        return {
            "user": self.owner,
            "cwd": self.directory,
            "env": {"PATH": os.environ["PATH"], "LANG": "C"},
        }


def require_postgres() -> Path:
    """Where its programs are."""
    binaries = _postgres_binaries()
    require(binaries, "PostgreSQL", "apt-get install postgresql")
    return Path(str(binaries))


@contextmanager
def postgres_cluster(directory: Path) -> Iterator[Postgres]:
    """A running cluster with an empty database."""
    binaries = require_postgres()
    directory.mkdir(parents=True)
    cluster = Postgres(binaries, directory, _unprivileged(directory))
    sockets = directory / "s"
    sockets.mkdir()
    if cluster.owner:
        shutil.chown(sockets, cluster.owner)
    make = [
        f"{binaries}/initdb",
        "-D",
        str(directory / "cluster"),
        "-U",
        "bottle",
        "-A",
        "trust",
        "-E",
        "UTF8",
    ]
    subprocess.run([*make, "--no-sync"], check=True, stdout=subprocess.DEVNULL, **cluster.as_owner)
    try:
        cluster.start()
        subprocess.run(cluster.psql("postgres", "create database bottle"), check=True, capture_output=True)
        yield cluster
    finally:
        cluster.stop()


@contextmanager
def running_postgres(directory: Path) -> Iterator[str]:
    with postgres_cluster(directory) as cluster:
        yield cluster.url


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
