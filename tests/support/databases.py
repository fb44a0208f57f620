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
