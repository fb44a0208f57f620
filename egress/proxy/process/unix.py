"""Unix sockets by paths of any length: the kernel limits only the name it is given."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def bind_unix(path: Path, *, mode: int) -> socket.socket:
    """Takes the place of what was there. Raises OSError.

    The sockets of a bottle are open to every user id because they are mounted into it; on the host, their
    directory is closed to all but the owner.
    """
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _short(path) as name:
            path.unlink(missing_ok=True)
            listening.bind(name)
        path.chmod(mode)
        listening.setblocking(False)
    except OSError:
        listening.close()
        raise
    return listening


def connect_unix(path: Path) -> socket.socket:
    """Never waits. Raises BlockingIOError when too many do already, or another OSError."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        with _short(path) as name:
            connection.connect(name)
    except OSError:
        connection.close()
        raise
    return connection


@contextmanager
def _short(path: Path) -> Iterator[str]:
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)
