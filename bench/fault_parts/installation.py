"""A bot-bottle whose parts can be killed, stopped and started again."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

from egress.tables.proxy_client import ProxyClient, ProxyDown
from tests.support import ROOT
from tests.support.databases import Postgres, postgres_cluster
from tests.support.origins import Origins, TestAuthority
from tests.support.server import KEPT_VARIABLES, prepare, stop
from tests.support.timeouts import wait_until

ORIGINS = {f"h{number}.example.com": f"127.0.0.{number + 2}" for number in range(6)}
DISK_BYTES = 512 * 1024 * 1024
STOP_SECONDS = 30.0


class Redis:
    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self._socket = directory / "s"
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"unix://{self._socket}?db=0"

    def start(self) -> None:
        binary = shutil.which("redis-server")
        if binary is None:
            raise SystemExit("redis-server is missing: apt-get install redis-server")
        command = [binary, "--port", "0", "--unixsocket", str(self._socket), "--save", ""]
        self._process = subprocess.Popen(
            [*command, "--dir", str(self._socket.parent)], stdout=subprocess.DEVNULL
        )
        wait_until(self._socket.exists, what="Redis")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._socket.unlink(missing_ok=True)


class Installation:
    """`manage.py up` and what it needs. Faults do to it what happens to real ones."""

    def __init__(self, root: Path, variables: dict[str, str]) -> None:
        self.root, self.home = root, root / "h"
        self.postgres: Postgres | None = None
        self.redis: Redis | None = None
        self.is_own_disk = False  # its file system can be filled without harm to others
        self.environment = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ} | {
            "BOTTLE_HOME": str(self.home),
            "HOME": str(root),
            "SUPERVISE_PORT": "0",
            "CONSOLE_PORT": "0",
            "EGRESS_PORT": "0",
            "EGRESS_PROCESSES": "1",
            "SUPERVISE_RESPONSE_TIMEOUT_SECONDS": "4",
            **variables,
        }
        self._up: subprocess.Popen[bytes] | None = None
        self._log = (root / "server.log").open("ab")

    # --- where it is

    @property
    def ports(self) -> dict[str, int]:
        """Of both planes now. Raises OSError or ValueError while it is not up."""
        return dict(json.loads((self.home / ".http.port").read_text()))

    @property
    def proxy_port(self) -> int:
        return int(json.loads((self.home / "run" / "egress.json").read_text())["port"])

    @property
    def proxy_client(self) -> ProxyClient:
        return ProxyClient(self.home / "run", 1)

    def is_well(self) -> bool:
        try:
            healthy = httpx.get(f"http://127.0.0.1:{self.ports['agent']}/health", timeout=2).text == "ok"
            return healthy and not self.proxy_client.status()["stopping"]
        except (OSError, ValueError, KeyError, httpx.HTTPError, ProxyDown):
            return False

    def children(self, command: str) -> list[int]:
        """Processes of `up` that run this command of manage.py."""
        assert self._up is not None
        found = []
        with suppress(OSError):
            children = Path(f"/proc/{self._up.pid}/task/{self._up.pid}/children").read_text().split()
            for pid in map(int, children):
                with suppress(OSError):
                    words = Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0")
                    if command in words:
                        found.append(pid)
        return found

    # --- what can be done to it

    def start(self) -> None:
        (self.home / ".http.port").unlink(missing_ok=True)
        self._up = subprocess.Popen(
            [sys.executable, "manage.py", "up"],
            cwd=ROOT, env=self.environment, stdout=self._log, stderr=self._log,
        )  # fmt: skip
        wait_until(self.is_well, what=f"the start, see {self.root}/server.log;")

    def stop(self) -> None:
        """As Ctrl-C does. Raises TimeoutExpired when it does not end."""
        if self._up is not None:
            self._up.send_signal(signal.SIGTERM)
            self._up.wait(STOP_SECONDS)

    def kill(self) -> None:
        """The supervisor alone: its children have to end by themselves."""
        assert self._up is not None
        children = self.children("web") + self.children("egress")
        self._up.kill()
        self._up.wait()
        wait_until(
            lambda: not any(Path(f"/proc/{pid}").exists() for pid in children),
            seconds=STOP_SECONDS, what="the end of the children of a killed supervisor",
        )  # fmt: skip

    def fill_disk(self) -> Path:
        """Writes until nothing more fits. Returns the file to delete."""
        ballast = self.home / "ballast"
        with ballast.open("wb", buffering=0) as file, suppress(OSError):
            while file.write(bytes(1024 * 1024)):
                pass
            while file.write(bytes(512)):  # the last blocks
                pass
        return ballast

    def manage(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "manage.py", *arguments],
            cwd=ROOT, env=self.environment, text=True, capture_output=True, timeout=120, check=False,
        )  # fmt: skip

    def json(self, *arguments: str) -> Any:
        finished = self.manage(*arguments, "--json")
        if finished.returncode:
            raise SystemExit(f"manage.py {arguments} failed: {finished.stderr}")
        return json.loads(finished.stdout)

    def close(self) -> None:
        try:
            self.stop()
        except subprocess.TimeoutExpired:
            assert self._up is not None
            stop(self._up)
            raise SystemExit(f"NOT MET: SIGTERM did not end `up` within {STOP_SECONDS:.0f} s") from None
        finally:
            self._log.close()


@contextmanager
def running_installation(root: Path, *, shared: bool) -> Iterator[tuple[Installation, Origins]]:
    """On SQLite alone, or `shared`: two workers on PostgreSQL and Redis."""
    with ExitStack() as stack:
        authority, origins = TestAuthority(root), Origins()
        stack.callback(origins.close)
        for host, address in ORIGINS.items():
            origins.add(host, address, authority.context([host]))
        variables = {
            "EGRESS_UPSTREAM_CA": str(authority.path),
            "EGRESS_PINNED_PORTS": f"443={origins.tls_port},80={origins.http_port}",
        }
        postgres = redis = None
        if shared:
            postgres = stack.enter_context(postgres_cluster(root / "pg"))
            redis = Redis(root / "redis")
            redis.start()
            stack.callback(redis.kill)
            variables |= {"DATABASE_URL": postgres.url, "REDIS_URL": redis.url, "WEB_WORKERS": "2"}
        made = Installation(root, variables)
        made.postgres, made.redis = postgres, redis
        made.home.mkdir(mode=0o700)
        if not shared:
            stack.enter_context(_disk_of_its_own(made))
            prepare(made.home)
        made.start()
        try:
            yield made, origins
        finally:
            made.close()


@contextmanager
def _disk_of_its_own(made: Installation) -> Iterator[None]:
    """A small file system, where we may mount one."""
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=700", "tmpfs", str(made.home)]
    made.is_own_disk = os.geteuid() == 0 and subprocess.run(mount, check=False).returncode == 0
    try:
        yield
    finally:
        for _ in range(50 if made.is_own_disk else 0):
            if subprocess.run(["umount", str(made.home)], capture_output=True, check=False).returncode == 0:
                break
            time.sleep(0.1)
