"""`run/pipelock.yaml`: what any bottle's gate lets through, whichever process serves the bottle."""

from __future__ import annotations

import json
import logging
from pathlib import Path

from botbottle.home import held
from egress.pipelock import render_pipelock
from egress.snapshot import write_atomically

from .config import Config

log = logging.getLogger(__name__)


class GateFile:
    """Every process says in a file of its own what its bottles need; who changed that writes the whole."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._written = ""

    def write(self, hosts: set[str]) -> None:
        """Waits for a neighbour that writes too. Does not raise: traffic goes on with the old file."""
        own = json.dumps(sorted(hosts))
        if own == self._written:
            return
        try:
            # alone: or the one who read first would write last, without what the other one added
            with held(self._config.run / "pipelock.lock"):
                if self._config.processes > 1:
                    write_atomically(self._part(self._config.number), own)
                    hosts = hosts.union(*map(self._hosts_of, range(self._config.processes)))
                write_atomically(self._config.run / "pipelock.yaml", render_pipelock(hosts))
            self._written = own
        except OSError as error:
            log.error("pipelock.yaml cannot be written: %s", error.strerror)

    def _part(self, number: int) -> Path:
        return self._config.run / f"pipelock-{number}.json"

    def _hosts_of(self, number: int) -> set[str]:
        try:
            return set(json.loads(self._part(number).read_text()))
        except FileNotFoundError:  # it writes the whole when it has come so far
            return set()
