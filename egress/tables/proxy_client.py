"""A client for the egress proxy's control sockets: have files reloaded, learn what is live, fetch records.

Trust boundary: Unix sockets of the operator's own user (`egress/proxy/process/control.py` is the other side).
"""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from egress.contract import sharding
from egress.contract.ack import Ack

ANSWER_SECONDS = 5.0
HURRY_SECONDS = 0.5
STOPPING = "bot-bottle is stopping, and waits no longer"
_open_connections: set[_UnixConnection] = set()
_aborted = False


def abort_calls() -> None:
    """This process ends: fail every pending and future call at once."""
    global _aborted  # noqa: PLW0603 - as true for the process as its end
    _aborted = True
    for connection in list(_open_connections):
        connection.hang_up()


class ProxyDown(Exception):
    """The egress process does not answer; the message says what to do."""

    def __init__(self, problem: str, label: str = "the egress proxy") -> None:
        super().__init__(f"{label} does not answer ({problem}); 'make up' starts it")


@dataclass(frozen=True, slots=True)
class RecordBatch:
    boot: str  # a run of the egress process: numbers start at 0 in each
    next: int
    dropped: int
    records: list[dict[str, Any]]

    @classmethod
    def of(cls, plain: dict[str, Any]) -> RecordBatch:
        return cls(plain["boot"], plain["next"], plain["dropped"], plain["records"])

    def without_records(self) -> RecordBatch:
        """The same, with its records counted as lost."""
        return RecordBatch(self.boot, self.next, self.dropped + len(self.records), [])


class ProxyClient:
    """A client for all egress processes of a home. Each of them serves bottles of its own."""

    def __init__(self, run: Path, configured: int) -> None:
        """`run` holds their control sockets, and a file with their number while they run."""
        self._run = run
        self.count = sharding.running(run, configured)

    def owner(self, slug: str) -> int:
        return sharding.owner(slug, self.count)

    def process(self, number: int) -> EgressProcess:
        return EgressProcess(sharding.control_socket(self._run, number), number, self.count)

    def processes(self) -> list[EgressProcess]:
        return [self.process(number) for number in range(self.count)]

    def reload(self, slug: str) -> Ack:
        """Have the proxy read the bottle's files now. Raises ProxyDown."""
        return self.process(self.owner(slug)).reload(slug)

    def routes(self, slug: str) -> dict[str, Any]:
        """The bottle's live table as its agent may see it. Raises ProxyDown, and KeyError if unknown."""
        return self.process(self.owner(slug)).routes(slug)

    def status(self) -> dict[str, Any]:
        """Every bottle's version, problems and counters. Raises ProxyDown unless all of them answer."""
        found = [process.status() for process in self.processes()]
        return {
            "bottles": {slug: state for each in found for slug, state in each["bottles"].items()},
            "stopping": any(each["stopping"] for each in found),
            "port": found[0]["port"],
        }


@dataclass(frozen=True, slots=True)
class EgressProcess:
    """A client for one egress process, by the path of its control socket."""

    control_socket: Path
    number: int = 0
    count: int = 1

    @property
    def label(self) -> str:
        """Its name in messages for operators."""
        return "the egress proxy" if self.count == 1 else f"egress process {self.number + 1} of {self.count}"

    def was_stopped(self, boot: str) -> bool:
        """Whether that run was stopped by an operator, and did not die."""
        note = sharding.stop_note(self.control_socket.parent, self.number)
        try:
            return boot != "" and note.read_text() == boot
        except OSError:
            return False

    def serves(self, slug: str) -> bool:
        return sharding.owner(slug, self.count) == self.number

    def reload(self, slug: str) -> Ack:
        expected = ("bottle", "version", "loaded_at", "problem")
        return Ack.from_dict(self._ask("POST", f"/reload/{slug}", expected=expected))

    def routes(self, slug: str) -> dict[str, Any]:
        plain = self._ask("GET", f"/bottles/{slug}/routes")
        return {"version": plain["version"], "routes": plain["routes"]}

    def status(self) -> dict[str, Any]:
        return self._ask("GET", "/status", expected=("bottles", "stopping", "port"))

    def ask_for_records(self, *, boot: str, after: int, wait: float) -> PendingCall:
        """Ask for the records after a number; the proxy waits `wait` seconds for some. Raises ProxyDown."""
        path = "/records?" + urlencode({"boot": boot, "after": after, "wait": wait})
        return PendingCall(self, "GET", path, wait, ("boot", "next", "dropped", "records"))

    def _ask(self, method: str, path: str, *, expected: Sequence[str] = ()) -> dict[str, Any]:
        with closing(PendingCall(self, method, path, 0.0, expected)) as call:
            return call.answer()


class PendingCall:
    """A request on a control socket that may not be answered yet. Must be closed."""

    def __init__(
        self, process: EgressProcess, method: str, path: str, patience: float, expected: Sequence[str]
    ) -> None:
        """Raises ProxyDown."""
        self._label = process.label
        self._seconds = ANSWER_SECONDS + patience
        self._expected = expected
        self._connection = _UnixConnection(process.control_socket, timeout=self._seconds)
        _open_connections.add(self._connection)  # before the check, so that `abort_calls` cannot miss it
        try:
            if _aborted:
                raise ProxyDown(STOPPING, self._label)
            with self._explaining_errors():
                self._connection.request(method, path, headers={"Host": "egress"})
        except BaseException:
            self.close()
            raise

    def fileno(self) -> int:
        """For `poll`: readable when the answer, or the end, has arrived."""
        return self._connection.sock.fileno()

    def hurry(self) -> None:
        """Shorten the time limit: the answer has begun to arrive, or is overdue."""
        self._connection.sock.settimeout(HURRY_SECONDS)

    def answer(self) -> dict[str, Any]:
        """Wait for the answer. Raises ProxyDown."""
        with self._explaining_errors():
            plain = json.loads(self._connection.getresponse().read())
        if not isinstance(plain, dict) or any(key not in plain for key in self._expected):
            raise ProxyDown("its answer is not the one expected", self._label)
        return plain

    def close(self) -> None:
        _open_connections.discard(self._connection)
        self._connection.close()

    @contextmanager
    def _explaining_errors(self) -> Iterator[None]:
        try:
            yield
        except TimeoutError as error:
            raise ProxyDown(f"nothing came within {self._seconds:g} s", self._label) from error
        except OSError as error:
            why = STOPPING if _aborted else error.strerror or str(error)
            raise ProxyDown(why, self._label) from error
        except (http.client.HTTPException, ValueError) as error:
            raise ProxyDown("its answer cannot be read", self._label) from error


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, *, timeout: float) -> None:
        super().__init__("egress", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))

    def hang_up(self) -> None:
        """End a waiting read, from another thread."""
        if self.sock is not None:
            with suppress(OSError):
                self.sock.shutdown(socket.SHUT_RDWR)
