"""The parent of several egress processes: binds the port they share, starts each again when it dies.

It serves nobody itself, so that nothing a bottle does can end it.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path

from botbottle.core.processes import Child, run_until_stopped
from egress.contract import sharding
from egress.proxy.config import Config
from egress.proxy.process.unix import connect_unix

_PART = "BOTTLE_EGRESS_PART"
_TO_END_SECONDS = 2.0  # besides what its open requests may take


@dataclass(frozen=True, slots=True)
class Sockets:
    """What processes inherit. What one puts into `neighbours[n]`, process n finds in `incoming[n]`.

    The parent keeps them all, so what waits there, or at the port, waits for the successor of a dead one.
    """

    tcp: list[socket.socket]
    incoming: list[socket.socket] = field(default_factory=list)
    neighbours: list[socket.socket] = field(default_factory=list)

    def add_pairs(self, count: int) -> None:
        for _ in range(count):
            pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
            self.incoming.append(pair[0])
            self.neighbours.append(pair[1])

    def descriptors(self) -> dict[str, list[int]]:
        found = {"tcp": self.tcp, "incoming": self.incoming, "neighbours": self.neighbours}
        return {name: [each.fileno() for each in sockets] for name, sockets in found.items()}

    @classmethod
    def inherited(cls, descriptors: dict[str, list[int]]) -> Sockets:
        return cls(
            **{
                name: [socket.socket(fileno=each) for each in numbers]
                for name, numbers in descriptors.items()
            }
        )

    def close(self) -> None:
        for each in (*self.tcp, *self.incoming, *self.neighbours):
            each.close()


@dataclass(frozen=True, slots=True)
class WorkerSlot:
    """A child's number, how many there are, and the descriptors of its sockets."""

    number: int
    processes: int
    descriptors: dict[str, list[int]]


def inherited_slot() -> WorkerSlot | None:
    """Ours, when a parent has started us."""
    told = os.environ.pop(_PART, "")
    return WorkerSlot(**json.loads(told)) if told else None


def run(config: Config, listening: list[socket.socket], lock: int) -> int:
    """Keep all of them running until SIGTERM or SIGINT.

    They hold the lock too: no successor starts while one of them still serves.
    """
    sockets = Sockets(listening)
    sockets.add_pairs(config.processes)
    children = [_child(config, number, sockets, lock) for number in range(config.processes)]
    signal.signal(signal.SIGHUP, lambda *_: _read_again(children))
    port = listening[0].getsockname()[1] if listening else None
    run_until_stopped(
        children, ready=lambda: config.publish(port), stopping=lambda: _no_more(config, sockets)
    )
    return 0


def _child(config: Config, number: int, sockets: Sockets, lock: int) -> Child:
    part = WorkerSlot(number, config.processes, sockets.descriptors())
    return Child(
        f"egress process {number + 1} of {config.processes}",
        [sys.executable, *sys.orig_argv[1:]],
        {_PART: json.dumps(asdict(part))},
        [*chain.from_iterable(part.descriptors.values()), lock],
        serves=partial(_answers, sharding.control_socket(config.run, number)),
        stop_seconds=config.limits.stop_seconds + _TO_END_SECONDS,
    )


def _answers(control: Path) -> bool:
    """Whether it serves: the control socket is what it opens last."""
    try:
        connect_unix(control).close()
    except OSError:
        return False
    return True


def _read_again(children: list[Child]) -> None:
    """Signal the children that serve; the others would die of it, and read everything anyway."""
    for child in children:
        if child.process is not None and child.serves():
            child.process.send_signal(signal.SIGHUP)


def _no_more(config: Config, sockets: Sockets) -> None:
    """Close the port in the parent too: nobody can connect, or wait, any more."""
    config.discovery.unlink(missing_ok=True)
    sockets.close()
