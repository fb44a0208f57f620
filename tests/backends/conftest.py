"""What the backends' tests share: a home with a bottle's directories, and servers behind its sockets."""

from __future__ import annotations

import shutil
import socket
import socketserver
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from botbottle.backends.base import (
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
