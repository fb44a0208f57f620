"""A real server and a real browser in a network namespace that has nothing but loopback.

The server starts the namespace; Chromium and the agents' calls enter it. The tests themselves stay outside
and steer the browser through pipes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.support import PROGRAMS, ROOT
from tests.support.island_agents import Agents, Call
from tests.support.origins import TestAuthority
from tests.support.requirements import require
from tests.support.server import KEPT_VARIABLES, RunningServer, prepare, stop
from tests.support.timeouts import PATIENCE, wait_until

# An address that looks public, led to the loopback without being the host's own (which is never dialled):
# traffic to it stays in the namespace. The name also ends with a dot: that is how the proxy looks names up.
ORIGIN, ORIGIN_ADDRESS = "api.example.com", "192.31.196.10"
ALONE = (
    "unshare", "--map-root-user", "--net", "--mount", "sh", "-c",
    f"ip link set lo up && ip route add local {ORIGIN_ADDRESS} dev lo src 127.0.0.1"
    ' && mount --bind "$1" /etc/hosts && mount --bind "$2" /etc/resolv.conf && shift 2 && exec "$@"', "sh",
)  # fmt: skip
QUIET_BROWSER = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip


@dataclass
class Island:
    server: RunningServer
    root: Path

    @cached_property
    def agents(self) -> Agents:
        return Agents(self.inside, self.server.environment)

    def inside(self, *command: str) -> list[str]:
        """The command line that runs a command in the server's namespace."""
        target = str(self.server.process.pid)
        return ["nsenter", "--preserve-credentials", "--user", "--net", "--target", target, *command]

    def browser_command(self) -> Path:
        """An executable that is Chromium, inside: what Playwright starts."""
        wrapper = self.root / "chromium-inside"
        if not wrapper.exists():
            line = " ".join(
                self.inside("env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", f"HOME={self.root}")
            )
            wrapper.write_text(f'#!/bin/sh\nexec {line} {shutil.which("chromium")} "$@"\n')
            wrapper.chmod(0o700)
        return wrapper

    @contextmanager
    def origin(self) -> Iterator[None]:
        """A TLS server under a public name on a public address, as the proxy in there sees it."""
        serve = [
            sys.executable,
            str(PROGRAMS / "tls_origin.py"),
            str(self.root / f"{ORIGIN}-30.pem"),
            ORIGIN_ADDRESS,
        ]
        process = subprocess.Popen(self.inside(*serve), stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout and process.stdout.readline() == "ready\n"
            yield
        finally:
            stop(process)
            if process.stdout:
                process.stdout.close()

    def curl(self, bottle: dict[str, str], url: str, *options: str) -> tuple[int, str]:
        """The status and body that a real curl in the bottle gets: it knows the proxy and the bottle's CA."""
        authority = self.server.home / "bottles" / bottle["slug"] / "ca.pem"
        finished = subprocess.run(
            self.inside(
                "env", "-i", "PATH=/usr/bin:/bin", f"HOME={self.root}",
                "curl", "--silent", "--show-error", "--max-time", "100", "--proxy", bottle["proxy_url"],
                "--cacert", str(authority), "--write-out", "\n%{http_code}", *options, url,
            ),
            capture_output=True, text=True, timeout=PATIENCE, check=False,
        )  # fmt: skip
        assert finished.returncode == 0, finished.stderr
        body, _, status = finished.stdout.rpartition("\n")
        return int(status), body

    def ask(self, bottle: dict[str, str], tool: str, **arguments: Any) -> Call:
        """An agent's tool call over real MCP."""
        return self.agents.ask(bottle, tool, arguments)


def require_island() -> None:
    require(shutil.which("chromium"), "Chromium", "apt-get install chromium")
    require(shutil.which("curl"), "curl", "apt-get install curl")
    tools = all(map(shutil.which, ("unshare", "nsenter", "ip")))
    command = [*ALONE, "/etc/hosts", "/etc/resolv.conf", "true"]
    alone = tools and subprocess.run(command, capture_output=True, check=False).returncode == 0
    require(
        alone,
        "a network namespace of our own",
        "apt-get install util-linux iproute2, and allow unprivileged user namespaces",
    )


@contextmanager
def running_island(root: Path, **variables: str) -> Iterator[Island]:
    home = root / "home"
    home.mkdir(mode=0o700)
    prepare(home)
    environment = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    environment |= {
        "BOTTLE_HOME": str(home),
        "HOME": str(root),
        "SUPERVISE_PORT": "9100",
        "CONSOLE_PORT": "8000",
        "EGRESS_PORT": "9101",
    }
    authority = TestAuthority(root)
    authority.context([ORIGIN])  # leaves the certificate in a file, for `origin`
    environment |= {"EGRESS_UPSTREAM_CA": str(authority.path), **variables}
    hosts, resolver = root / "hosts", root / "resolv.conf"
    hosts.write_text(f"127.0.0.1 localhost\n{ORIGIN_ADDRESS} {ORIGIN} {ORIGIN}.\n")
    resolver.write_text("nameserver 127.0.0.1\n")  # where nobody answers
    with (home / "server.log").open("w") as log:
        process = subprocess.Popen(
            [*ALONE, str(hosts), str(resolver), sys.executable, "manage.py", "up"],
            cwd=ROOT, env=environment, text=True, stdout=log, stderr=log,
        )  # fmt: skip
    server = RunningServer(home, environment, process, agent_port=9100, console_port=8000)
    island = Island(server, root)
    try:
        wait_until(lambda: _serves(server), what="the server's start")
        yield island
    finally:
        island.agents.close()
        server.close()


def _serves(server: RunningServer) -> bool:
    if server.process.poll() is not None:
        raise AssertionError(f"the server ended: {server.log()}")
    return "console  http://" in server.log()
