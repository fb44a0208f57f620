"""The agents of an island: one process asks for all of them. A process for each call would cost a start."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

from tests.support import PROGRAMS
from tests.support.server import stop
from tests.support.timeouts import PATIENCE, until_patience_ends


class Agents:
    """Starts with the first call."""

    def __init__(self, inside: Callable[..., list[str]], environment: dict[str, str]) -> None:
        self._inside, self._environment = inside, environment
        self._process: subprocess.Popen[bytes] | None = None
        self._numbers, self._unread = count(1), b""
        self._waiting: set[int] = set()
        self._answers: dict[int, dict[str, Any]] = {}

    def ask(self, bottle: dict[str, str], tool: str, arguments: dict[str, Any]) -> Call:
        number = next(self._numbers)
        call = {"number": number, "url": bottle["mcp_url"], "token": bottle["token"], "tool": tool}
        self._waiting.add(number)
        self._tell(json.dumps(call | {"arguments": arguments}))
        return Call(self, number)

    def answer(self, number: int, seconds: float) -> dict[str, Any] | None:
        """What came for a call, within the time; None when nothing did."""
        for _ in until_patience_ends(seconds):
            if number in self._answers or not self._read(seconds):
                break
        return self._answers.get(number)

    def hang_up(self) -> None:
        """Ends the calls that still wait. Returns when they have ended."""
        self._read(0)
        if self._waiting:
            self._tell("")
        for number in list(self._waiting):
            assert self.answer(number, PATIENCE), "a call did not end"
        self._answers.clear()

    def close(self) -> None:
        if self._process:
            stop(self._process)
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe:
                    pipe.close()

    def _tell(self, line: str) -> None:
        if self._process is None:
            self._process = subprocess.Popen(
                self._inside(sys.executable, str(PROGRAMS / "mcp_calls.py")),
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=self._environment,
            )  # fmt: skip
        assert self._process.stdin
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()

    def _read(self, seconds: float) -> bool:
        """Takes in what has been said; waits for it if there is time."""
        if self._process is None or self._process.stdout is None:
            return False
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(seconds):
                return False
        came = os.read(self._process.stdout.fileno(), 1 << 16)
        assert came, "the agents' process ended"
        *lines, self._unread = (self._unread + came).split(b"\n")
        for line in lines:
            said = json.loads(line)
            self._answers[said["number"]] = said
            self._waiting.discard(said["number"])
        return True


@dataclass(frozen=True, slots=True)
class Call:
    _agents: Agents
    _number: int

    @property
    def waits(self) -> bool:
        return self._agents.answer(self._number, 0) is None

    def result(self) -> dict[str, Any]:
        said = self._ended()
        assert not said["error"], said["error"]
        return dict(json.loads(said["answer"])["result"])

    def error(self) -> str:
        """Why there is no answer; empty when there is one."""
        return str(self._ended()["error"])

    def _ended(self) -> dict[str, Any]:
        said = self._agents.answer(self._number, PATIENCE)
        assert said, "the call was not answered"
        return said
