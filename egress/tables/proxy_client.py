"""The control plane's side of the egress proxy: have files read, hear what is live, fetch records.

Trust boundary: Unix sockets of the operator's own user (`egress/proxy/process/control.py` is the other side).
"""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from egress.contract import sharding

ANSWER_SECONDS = 5.0
HURRY_SECONDS = 0.5
STOPPING = "bot-bottle is stopping, and waits no longer"
_asking: set[_UnixConnection] = set()
_given_up = False


def give_up() -> None:
    """This process ends: who waits for an answer hears at once that there is none."""
    global _given_up  # noqa: PLW0603 - as true for the process as its end
    _given_up = True
    for connection in list(_asking):
        connection.hang_up()


class ProxyDown(Exception):
    """The egress process does not answer; the message says what to do."""

    def __init__(self, problem: str, who: str = "the egress proxy") -> None:
        super().__init__(f"{who} does not answer ({problem}); 'make up' starts it")


@dataclass(frozen=True, slots=True)
class Ack:
    """The data plane's word: this version is live since then, and what is wrong with files or sockets."""

    version: int
    loaded_at: datetime | None  # None: nothing ever was
    problem: str | None


@dataclass(frozen=True, slots=True)
class RecordBatch:
    boot: str  # a run of the egress process: numbers begin anew with each
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
    """All egress processes of a home. Each serves bottles of its own, and is asked about those."""

    def __init__(self, run: Path, configured: int) -> None:
        """`run` has their control sockets, and says how many there are while they run."""
        self._run = run
        self.count = sharding.running(run, configured)

    def owner(self, slug: str) -> int:
        return sharding.owner(slug, self.count)

    def process(self, number: int) -> EgressProcess:
        return EgressProcess(sharding.control_socket(self._run, number), number, self.count)

    def processes(self) -> list[EgressProcess]:
        return [self.process(number) for number in range(self.count)]

    def reload(self, slug: str) -> Ack:
        """Have the bottle's files read now. Raises ProxyDown."""
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
    """One of them, by the path of its control socket."""

    control_socket: Path
    number: int = 0
    count: int = 1

    @property
    def who(self) -> str:
        """As operators are told of it."""
        return "the egress proxy" if self.count == 1 else f"egress process {self.number + 1} of {self.count}"

    def was_stopped(self, boot: str) -> bool:
        """Whether that run of it was told to stop, rather than died."""
        note = sharding.stop_note(self.control_socket.parent, self.number)
        try:
            return boot != "" and note.read_text() == boot
        except OSError:
            return False

    def serves(self, slug: str) -> bool:
        return sharding.owner(slug, self.count) == self.number

    def reload(self, slug: str) -> Ack:
        plain = self._ask("POST", f"/reload/{slug}", expecting=("version", "loaded_at", "problem"))
        loaded_at = plain["loaded_at"] and datetime.fromisoformat(plain["loaded_at"])
        return Ack(plain["version"], loaded_at, plain["problem"])

    def routes(self, slug: str) -> dict[str, Any]:
        plain = self._ask("GET", f"/bottles/{slug}/routes")
        return {"version": plain["version"], "routes": plain["routes"]}

    def status(self) -> dict[str, Any]:
        return self._ask("GET", "/status", expecting=("bottles", "stopping", "port"))

    def ask_for_records(self, *, boot: str, after: int, wait: float) -> PendingCall:
        """What came after a number; its answer waits so many seconds for some. Raises ProxyDown."""
        path = "/records?" + urlencode({"boot": boot, "after": after, "wait": wait})
        return PendingCall(self, "GET", path, wait, ("boot", "next", "dropped", "records"))

    def _ask(self, method: str, path: str, *, expecting: Sequence[str] = ()) -> dict[str, Any]:
        with closing(PendingCall(self, method, path, 0.0, expecting)) as question:
            return question.answer()


class PendingCall:
    """Asked, and perhaps not answered yet. Has to be closed."""

    def __init__(
        self, process: EgressProcess, method: str, path: str, patience: float, expecting: Sequence[str]
    ) -> None:
        """Raises ProxyDown."""
        self._who = process.who
        self._seconds = ANSWER_SECONDS + patience
        self._expecting = expecting
        self._connection = _UnixConnection(process.control_socket, timeout=self._seconds)
        _asking.add(self._connection)  # before the look: so `give_up` cannot miss it
        try:
            if _given_up:
                raise ProxyDown(STOPPING, self._who)
            with self._explained():
                self._connection.request(method, path, headers={"Host": "egress"})
        except BaseException:
            self.close()
            raise

    def fileno(self) -> int:
        """For `select`: there is something to read, or an end."""
        return self._connection.sock.fileno()

    def lose_patience(self) -> None:
        """For who knows that the answer is there, or has waited for long enough."""
        self._connection.sock.settimeout(HURRY_SECONDS)

    def answer(self) -> dict[str, Any]:
        """Waits for it. Raises ProxyDown."""
        with self._explained():
            plain = json.loads(self._connection.getresponse().read())
        if not isinstance(plain, dict) or any(key not in plain for key in self._expecting):
            raise ProxyDown("its answer is not the one expected", self._who)
        return plain

    def close(self) -> None:
        _asking.discard(self._connection)
        self._connection.close()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except TimeoutError as error:
            raise ProxyDown(f"nothing came within {self._seconds:g} s", self._who) from error
        except OSError as error:
            why = STOPPING if _given_up else error.strerror or str(error)
            raise ProxyDown(why, self._who) from error
        except (http.client.HTTPException, ValueError) as error:
            raise ProxyDown("its answer cannot be read", self._who) from error


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
