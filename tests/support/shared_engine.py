"""One Docker engine for all workers of a test run, whoever of them needs it first.

A process of its own keeps it. Each user holds a connection to that process, which ends the engine when the
last connection has ended: also that of a worker that was killed, and not with the worker that was first.
Whoever leaves last waits until nothing of the engine is left.
"""

from __future__ import annotations

import fcntl
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support import ROOT
from tests.support.docker_engine import OwnEngine
from tests.support.timeouts import PATIENCE

READY = b"ready"
SOCKET = "users.sock"


@contextmanager
def in_use(shared: Path) -> Iterator[Path]:
    """The directory of the engine; `shared` is a directory that all workers of the run know."""
    with (shared / "docker-engine.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        place = shared / "docker-engine"
        root = Path(place.read_text()) if place.exists() else None
        connection = root and _connect(root)
        if not root or not connection:  # nobody has had one yet, or the last of its users has left
            root = _start()
            place.write_text(str(root))
            connection = _connect(root)
    if not connection:
        raise AssertionError(f"the engine did not start, see {root}/log")
    with connection:
        try:
            yield root
        finally:
            connection.shutdown(socket.SHUT_WR)
            connection.recv(1)  # nothing comes: it is closed


def _connect(root: Path) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(PATIENCE)
    try:
        connection.connect(str(root / SOCKET))
        if connection.recv(len(READY)) == READY:
            return connection
    except OSError:
        pass
    connection.close()
    return None


def _start() -> Path:
    root = Path(tempfile.mkdtemp(prefix="bottle-dockerd-"))
    with socket.socket(socket.AF_UNIX) as listener, (root / "log").open("wb") as log:
        listener.bind(str(root / SOCKET))
        listener.listen(64)
        subprocess.run(
            ["setsid", "--fork", sys.executable, "-m", __spec__.name, str(root), str(listener.fileno())],
            cwd=ROOT, pass_fds=[listener.fileno()], check=True,
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
    return root


def keep(root: Path, listener: socket.socket) -> None:
    engine = OwnEngine(root)
    engine.start()
    try:
        engine.make_images()
        last = _serve(listener)
    finally:
        listener.close()  # whoever comes now finds nobody, and starts another
        engine.close()
    last.close()


def _serve(listener: socket.socket) -> socket.socket:
    """Until one user is left, and leaves: their connection is closed when all is gone."""
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is listener:
                    user, _ = listener.accept()
                    with suppress(OSError):  # they have left already
                        user.sendall(READY)
                    selector.register(user, selectors.EVENT_READ)
                    continue
                left = key.fileobj
                assert isinstance(left, socket.socket)
                selector.unregister(left)
                if len(selector.get_map()) == 1:
                    return left
                left.close()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    os.umask(0o022)
    keep(Path(sys.argv[1]), socket.socket(fileno=int(sys.argv[2])))
