"""`run/pipelock.yaml`: what any bottle's gate lets through, whichever process serves the bottle."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

from botbottle.core import locks
from botbottle.core.files import write_atomically
from egress.contract.pipelock import render_pipelock
from egress.proxy.config import Config

# pipelock reads its file when that has not changed for a tenth of a second; the rest is for reading it.
SETTLING_SECONDS = 0.25


class GateFile:
    """Every process says in a file of its own what its bottles need; who changed that writes the whole."""

    def __init__(self, config: Config, clock: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._clock = clock
        self._path = config.run / "pipelock.yaml"
        self._written = ""
        self._settled_at = clock()

    def write(self, hosts: set[str]) -> None:
        """Waits for a neighbour that writes too. Raises OSError: then the old file stays."""
        own = json.dumps(sorted(hosts))
        if own == self._written:
            return
        # alone: or the one who read first would write last, without what the other one added
        with locks.lock(self._config.run / "pipelock.lock"):
            if self._config.processes > 1:
                write_atomically(self._part(self._config.number), own)
                hosts = hosts.union(*map(self._hosts_of, range(self._config.processes)))
            self._replace(render_pipelock(hosts))
        self._written = own

    def settles_in(self) -> float:
        """For how many seconds the gate may still go by what was in the file before."""
        return max(0.0, self._settled_at - self._clock())

    def _replace(self, text: str) -> None:
        if self._path.exists() and self._path.read_bytes() == text.encode("utf-8"):
            return
        write_atomically(self._path, text)
        self._settled_at = self._clock() + SETTLING_SECONDS

    def _part(self, number: int) -> Path:
        return self._config.run / f"pipelock-{number}.json"

    def _hosts_of(self, number: int) -> set[str]:
        try:
            return set(json.loads(self._part(number).read_text()))
        except FileNotFoundError:  # it writes the whole when it has come so far
            return set()
