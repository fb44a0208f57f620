"""Connects to the Docker engine of this host, and turns its errors into sentences."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

import requests.exceptions
from docker import DockerClient  # type: ignore[import-untyped]
from docker.errors import APIError, DockerException  # type: ignore[import-untyped]

from botbottle.backends.base import Unavailable
from botbottle.core.plan_types import BackendError

_DEFAULT = "unix:///var/run/docker.sock"
SECONDS = 60


def socket_path() -> str:
    """The engine's socket. Raises Unavailable when the engine is on another host."""
    url = os.environ.get("DOCKER_HOST") or _DEFAULT
    if not url.startswith("unix://"):
        raise Unavailable(
            f"DOCKER_HOST={url} is not on this host, where the bottle's sockets and workspace are. "
            "Set it to a unix:// socket."
        )
    return url.removeprefix("unix://")


@contextmanager
def connected(seconds: float = SECONDS) -> Iterator[DockerClient]:
    """A client of the engine. Errors in the block are raised as Unavailable or BackendError.

    An engine that is silent for `seconds` counts as gone.
    """
    path = socket_path()
    try:
        _knock(path, seconds)  # the SDK would leave its sockets open
        client = DockerClient(base_url=f"unix://{path}", timeout=seconds)
    except (DockerException, requests.exceptions.RequestException, OSError) as error:
        raise _unavailable(path, error) from error
    try:
        yield client
    except APIError as error:
        raise BackendError(f"The Docker engine refused: {error.explanation or error}") from error
    except (DockerException, requests.exceptions.RequestException) as error:
        raise _unavailable(path, error) from error
    finally:
        client.close()


def _knock(path: str, seconds: float) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(seconds)
        connection.connect(path)


def _unavailable(path: str, error: Exception) -> Unavailable:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return Unavailable(
        f"The Docker engine does not answer at {path}: {reason}. Install and start it (apt-get install "
        "docker.io; systemctl start docker), let your account use it (group docker), or set DOCKER_HOST."
    )


def moment(text: str) -> float | None:
    """Parse the engine's time into seconds; its 'never' is the year 1."""
    found = re.fullmatch(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d+)?(Z|[+-]\d\d:\d\d)", text)
    if found is None or text.startswith("0001-"):
        return None
    seconds, fraction, zone = found.groups()
    return datetime.fromisoformat(seconds + zone).timestamp() + float(fraction or 0)
