"""The parent of several egress processes: binds the port they share, starts each again when it dies.

It serves nobody itself, so that nothing a bottle does can end it.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from botbottle.processes import Child, run_until_stopped
from egress import shards

from .config import Config, upstream_context
from .unix import connect_unix

_PART = "BOTTLE_EGRESS_PART"
_TO_END_SECONDS = 2.0  # besides what its open requests may take


@dataclass(frozen=True, slots=True)
class Part:
    """What a child is told: which of how many it is, and where it finds the port."""

    number: int
    processes: int
    descriptors: list[int]

    def tcp(self) -> list[socket.socket]:
        return [socket.socket(fileno=descriptor) for descriptor in self.descriptors]


def part_of() -> Part | None:
    """Ours, when a parent has started us."""
    told = os.environ.pop(_PART, "")
    return Part(**json.loads(told)) if told else None


def run(config: Config, listening: Sequence[socket.socket], lock: int) -> int:
    """Keep all of them running until SIGTERM or SIGINT. Raises BadSetting.

    They hold the lock too: no successor starts while one of them still serves.
    """
    upstream_context(config)  # what is wrong with it is told once, not by each
    children = [_child(config, number, listening, lock) for number in range(config.processes)]
    signal.signal(signal.SIGHUP, lambda *_: _read_again(children))
    port = listening[0].getsockname()[1] if listening else None
    try:
        run_until_stopped(
            children, ready=lambda: config.tell(port), stopping=lambda: _no_more(config, listening)
        )
    finally:
        config.discovery.unlink(missing_ok=True)
    return 0


def _child(config: Config, number: int, listening: Sequence[socket.socket], lock: int) -> Child:
    descriptors = [each.fileno() for each in listening]
    part = Part(number, config.processes, descriptors)
    return Child(
        f"egress process {number + 1} of {config.processes}",
        [sys.executable, *sys.orig_argv[1:]],
        {_PART: json.dumps(asdict(part))},
        [*descriptors, lock],
        serves=partial(_answers, shards.control_socket(config.run, number)),
        stop_seconds=config.limits.stop_seconds + _TO_END_SECONDS,
    )


def _answers(control: Path) -> bool:
    """It opens this last."""
    try:
        connect_unix(control).close()
    except OSError:
        return False
    return True


def _read_again(children: list[Child]) -> None:
    """Those that do not serve yet would die of the signal, and read everything anyway."""
    for child in children:
        if child.process is not None and child.serves():
            child.process.send_signal(signal.SIGHUP)


def _no_more(config: Config, listening: Sequence[socket.socket]) -> None:
    """Nobody connects, or waits to be taken, when all of us have let go of the port."""
    config.discovery.unlink(missing_ok=True)
    for each in listening:
        each.close()
