"""What tests with a bottle share: a home with its directories, and servers behind its sockets."""

from __future__ import annotations

import os
import shutil
import socket
import socketserver
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from botbottle.core.plan_types import (
    CONFIG_INSIDE,
    HOME_INSIDE,
    SOCKETS_INSIDE,
    TRUST_INSIDE,
    WORKSPACE_INSIDE,
    Mount,
    Plan,
    Variable,
)

DIRECTORIES = {
    "workspace": WORKSPACE_INSIDE,
    "sockets": SOCKETS_INSIDE,
    "current-config": CONFIG_INSIDE,
    "ca": TRUST_INSIDE,
}


@pytest.fixture
def home() -> Iterator[Path]:
    """Short, since tests bind sockets in it by name."""
    directory = Path(tempfile.mkdtemp(prefix="bb-"))
    yield directory
    shutil.rmtree(directory)


DOCKERS_GATEWAY = "172.17.0.1"


def gateways() -> list[str]:
    """The way out of this machine, and what Docker's usual network would have."""
    lines = [line.split() for line in Path("/proc/net/route").read_text().splitlines()[1:]]
    found = {socket.inet_ntoa(bytes.fromhex(line[2])[::-1]) for line in lines if line[1] == "00000000"}
    return sorted(found - {"0.0.0.0"} | {DOCKERS_GATEWAY})


@contextmanager
def listening_on_the_host() -> Iterator[dict[str, list[Any]]]:
    """Stand-ins that can all be reached from here, as escape.py is given them: what it finds is no accident.

    One listens everywhere, one on loopback as the console does, one in the host's /run as engines do.
    """
    with ExitStack() as stack:
        anywhere = stack.enter_context(
            socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
            if socket.has_dualstack_ipv6()
            else socket.create_server(("0.0.0.0", 0))
        )
        loopback = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        ports = [anywhere.getsockname()[1], loopback.getsockname()[1]]
        sockets = [stack.enter_context(_unix(place)) for place in _runtime_directories()]
        for port in ports:
            socket.create_connection(("127.0.0.1", port), timeout=10).close()
        for path in sockets:
            with socket.socket(socket.AF_UNIX) as probe:
                probe.connect(path)
        yield {"ports": ports, "sockets": sockets, "gateways": gateways()}


def _runtime_directories() -> list[Path]:
    """Of the system and of the user, as far as we may write there."""
    places = ["/run", "/var/run", os.environ.get("XDG_RUNTIME_DIR", "")]
    return [Path(place) for place in places if place and os.access(place, os.W_OK)]


@contextmanager
def _unix(directory: Path) -> Iterator[str]:
    path = directory / f"bb-{os.getpid()}-{directory.parent.name}.sock"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        try:
            listening.listen()
            yield str(path)
        finally:
            path.unlink()


@pytest.fixture
def plan_of(home: Path) -> Callable[..., Plan]:
    """A plan for this command, with everything a bottle has."""

    def make(*command: str, slug: str = "demo", **changes: object) -> Plan:
        directory = home / "bottles" / slug
        for name in DIRECTORIES:
            (directory / name).mkdir(parents=True, exist_ok=True)
        (directory / "ca" / "bundle.pem").write_text("the bundle\n")
        (directory / "ca-key.pem").write_text("the key\n")
        mounts = [
            Mount(str(directory / name), target, name == "workspace") for name, target in DIRECTORIES.items()
        ]
        values = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": HOME_INSIDE}
        chosen = {
            "variables": {name: Variable(value) for name, value in values.items()},
            "mounts": tuple(mounts),
            "command": command,
        } | changes
        return Plan(slug, "local", str(directory), **chosen)

    return make


class Answering(socketserver.ThreadingUnixStreamServer):
    """Says which socket it is; or sends back what it gets, until the other side has sent all."""

    daemon_threads = True
    request_queue_size = 512

    def __init__(self, path: str, name: str) -> None:
        self.name = name
        super().__init__(path, Handler)


class Handler(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        first = self.request.recv(65536)
        if first.startswith(b"GET"):
            self.request.sendall(f"HTTP/1.1 200 OK\r\n\r\nthis is {self.server.name}".encode())
            return
        while first:
            self.request.sendall(first)
            first = self.request.recv(65536)
        self.request.shutdown(socket.SHUT_WR)


@pytest.fixture
def serve() -> Iterator[Callable[[Path], None]]:
    """Servers on the two sockets in this directory, as the egress process has them."""
    servers = []

    def start(sockets: Path) -> None:
        sockets.mkdir(parents=True, exist_ok=True)
        for name in ("proxy", "agent"):
            server = Answering(str(sockets / f"{name}.sock"), name)
            servers.append(server)
            threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()
