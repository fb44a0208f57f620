"""`run/pipelock.yaml`: what any bottle's gate lets through, whichever process serves the bottle."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable
from pathlib import Path

from botbottle.core import locks
from botbottle.core.files import write_atomically
from egress.contract.pipelock import render_pipelock
from egress.proxy.config import Config

log = logging.getLogger(__name__)
# pipelock reads its file when that has not changed for a tenth of a second; the rest is for reading it.
RELOAD_SECONDS = 0.25


class GateFile:
    """Each process writes what its bottles need to its own file; the one that changed it writes the whole."""

    def __init__(self, config: Config, clock: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._clock = clock
        self._path = config.run / "pipelock.yaml"
        self._written = ""
        self._reloaded_at = clock()
        self._publishing = asyncio.Lock()

    async def publish(self, hosts: Callable[[], set[str]]) -> str | None:
        """Have the operator's pipelock, if there is one, let these hosts through, and wait until it does.

        It notices a new file by itself. Returns a problem with writing the file, or None.
        """
        if self._config.gateway is None:
            return None
        async with self._publishing:  # or what was known earlier could be written later
            try:
                await asyncio.to_thread(self.write, hosts())
            except OSError as error:
                log.error("pipelock.yaml cannot be written: %s", error.strerror)
                return f"pipelock.yaml cannot be written: {error.strerror}. The gate has an older list."
        await asyncio.sleep(self.reload_delay())
        return None

    def write(self, hosts: set[str]) -> None:
        """Waits for a neighbour that writes too. Raises OSError: then the old file stays."""
        own = json.dumps(sorted(hosts))
        if own == self._written:
            return
        # alone: or the process that read first could write last, without what the other one added
        with locks.lock(self._config.run / "pipelock.lock"):
            if self._config.processes > 1:
                write_atomically(self._part(self._config.number), own)
                hosts = hosts.union(*map(self._hosts_of, range(self._config.processes)))
            self._replace(render_pipelock(hosts))
        self._written = own

    def reload_delay(self) -> float:
        """For how many seconds the gate may still go by what was in the file before."""
        return max(0.0, self._reloaded_at - self._clock())

    def _replace(self, text: str) -> None:
        if self._path.exists() and self._path.read_bytes() == text.encode("utf-8"):
            return
        write_atomically(self._path, text)
        self._reloaded_at = self._clock() + RELOAD_SECONDS

    def _part(self, number: int) -> Path:
        return self._config.run / f"pipelock-{number}.json"

    def _hosts_of(self, number: int) -> set[str]:
        try:
            return set(json.loads(self._part(number).read_text()))
        except FileNotFoundError:  # it writes the whole when it has come so far
            return set()
