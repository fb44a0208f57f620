"""The control plane's side of the egress process: have files read, hear what is live, fetch records.

Trust boundary: a Unix socket of the operator's own user (`egress/proxy/control.py` is the other side).
"""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

ANSWER_SECONDS = 5.0
STOPPING = "bot-bottle is stopping, and waits no longer"
_asking: set[_UnixConnection] = set()
_given_up = False


def give_up() -> None:
    """This process ends: who waits for an answer hears at once that there is none."""
    global _given_up  # noqa: PLW0603 - as true for the process as its end
    _given_up = True
    for connection in list(_asking):
        connection.hang_up()


class DataPlaneDown(Exception):
    """The egress process does not answer; the message says what to do."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"the egress proxy does not answer ({problem}); 'make up' starts it")


@dataclass(frozen=True, slots=True)
class Ack:
    """The data plane's word: this version is live, and what is wrong with the bottle's files or sockets."""

    version: int
    problem: str | None


@dataclass(frozen=True, slots=True)
class RecordBatch:
    boot: str  # a run of the egress process: numbers begin anew with each
    next: int
    dropped: int
    records: list[dict[str, Any]]


class DataPlane:
    """One egress process, by the path of its control socket."""

    def __init__(self, control_socket: Path) -> None:
        self._path = control_socket

    def reload(self, slug: str) -> Ack:
        """Have the bottle's files read now. Raises DataPlaneDown."""
        plain = self._ask("POST", f"/reload/{slug}", expecting=("version", "problem"))
        return Ack(version=plain["version"], problem=plain["problem"])

    def routes(self, slug: str) -> dict[str, Any]:
        """The bottle's live table as its agent may see it. Raises DataPlaneDown, and KeyError if unknown."""
        plain = self._ask("GET", f"/bottles/{slug}/routes")
        return {"version": plain["version"], "routes": plain["routes"]}

    def status(self) -> dict[str, Any]:
        """Every bottle's version, problems and counters. Raises DataPlaneDown."""
        return self._ask("GET", "/status", expecting=("bottles", "stopping", "port"))

    def records(self, *, boot: str, after: int, wait: float) -> RecordBatch:
        """What came after a number; waits so many seconds while there is nothing. Raises DataPlaneDown."""
        plain = self._ask(
            "GET",
            "/records?" + urlencode({"boot": boot, "after": after, "wait": wait}),
            patience=wait,
            expecting=("boot", "next", "dropped", "records"),
        )
        return RecordBatch(plain["boot"], plain["next"], plain["dropped"], plain["records"])

    def _ask(
        self, method: str, path: str, *, patience: float = 0.0, expecting: Sequence[str] = ()
    ) -> dict[str, Any]:
        try:
            with _connection(self._path, timeout=ANSWER_SECONDS + patience) as connection:
                connection.request(method, path, headers={"Host": "egress"})
                plain = json.loads(connection.getresponse().read())
        except TimeoutError as error:
            raise DataPlaneDown(f"nothing came within {ANSWER_SECONDS + patience:g} s") from error
        except OSError as error:
            raise DataPlaneDown(STOPPING if _given_up else error.strerror or str(error)) from error
        except (http.client.HTTPException, ValueError) as error:
            raise DataPlaneDown("its answer cannot be read") from error
        if not isinstance(plain, dict) or any(key not in plain for key in expecting):
            raise DataPlaneDown("its answer is not the one expected")
        return plain


@contextmanager
def _connection(path: Path, *, timeout: float) -> Iterator[_UnixConnection]:
    """Raises DataPlaneDown when this process ends."""
    connection = _UnixConnection(path, timeout=timeout)
    _asking.add(connection)  # before the look: so `give_up` cannot miss it
    try:
        if _given_up:
            raise DataPlaneDown(STOPPING)
        yield connection
    finally:
        _asking.discard(connection)
        connection.close()


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, *, timeout: float) -> None:
        super().__init__("egress", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))

    def hang_up(self) -> None:
        """From another thread: a read that waits ends."""
        if self.sock is not None:
            with suppress(OSError):
                self.sock.shutdown(socket.SHUT_RDWR)
