"""The sockets of the web process, opened before it starts so that several workers can share them."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from botbottle.core.environment import BadSetting
from botbottle.core.files import write_private
from botbottle.web.planes import Plane

BACKLOG = 4096  # thousands of agents may connect at once
INHERITED = "BOTTLE_LISTENERS"
RELAY_SOCKET = "run/relay.sock"
LOCALLY = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104 - compared, not bound


@dataclass(frozen=True, slots=True)
class Listener:
    plane: Plane
    socket: socket.socket

    @property
    def port(self) -> int | None:
        return None if self.socket.family == socket.AF_UNIX else self.socket.getsockname()[1]

    @property
    def reachable_at(self) -> tuple[str, int]:
        """An address to connect to from this machine, instead of a wildcard."""
        host, port = self.socket.getsockname()[:2]
        return LOCALLY.get(host, host), port


def url(host: str, port: int | None) -> str:
    """The URL for a client: without a wildcard, and with brackets around an IPv6 address."""
    host = LOCALLY.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def open_all(home: Path, *, agent: tuple[str, int], console: tuple[str, int]) -> list[Listener]:
    """Bind every listener. Raises BadSetting with a sentence that says which one failed."""
    opened = [
        Listener(Plane.AGENT, _tcp(*agent, "SUPERVISE_PORT")),
        Listener(Plane.OPERATOR, _tcp(*console, "CONSOLE_PORT")),
    ]
    return [*opened, Listener(Plane.RELAY, _unix(home / RELAY_SOCKET))]


def inherited() -> list[Listener] | None:
    """The listeners inherited from a parent process, or None."""
    described = os.environ.pop(INHERITED, None)
    if described is None:
        return None
    return [
        Listener(Plane(plane), socket.socket(fileno=number))
        for plane, number in json.loads(described).items()
    ]


def inheritable(listeners: list[Listener]) -> tuple[dict[str, str], list[int]]:
    """The environment and descriptors with which a child process inherits these listeners."""
    numbers = {listener.plane.value: listener.socket.fileno() for listener in listeners}
    return {INHERITED: json.dumps(numbers)}, list(numbers.values())


@contextmanager
def published(home: Path, listeners: list[Listener]) -> Iterator[None]:
    """Publish the ports in the discovery file (0600) within the block, and remove it afterwards."""
    ports = {listener.plane.value: listener.port for listener in listeners if listener.port}
    discovery = home / ".http.port"
    write_private(discovery, json.dumps({"agent": ports["agent"], "console": ports["operator"]}) + "\n")
    try:
        yield
    finally:
        discovery.unlink(missing_ok=True)
        (home / RELAY_SOCKET).unlink(missing_ok=True)


def _tcp(host: str, port: int, variable: str) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        raise BadSetting(
            f"Cannot listen on {host}:{port} ({error.strerror}). Stop what uses it, or set {variable}."
        ) from error
    return listener


def _unix(path: Path) -> socket.socket:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if _somebody_answers(path):
            raise BadSetting(f"bot-bottle already runs on {path.parent.parent}. Stop it, or set BOTTLE_HOME.")
        path.unlink(missing_ok=True)
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen(BACKLOG)
    except OSError as error:
        raise BadSetting(f"Cannot listen on {path} ({error}). Set a shorter BOTTLE_HOME.") from error
    return listener


def _somebody_answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True
