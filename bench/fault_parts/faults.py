"""What goes wrong in a round, chosen by a seed. Each fault ends what it began."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bench.fault_parts.installation import Installation


@dataclass(frozen=True)
class Fault:
    name: str
    happen: Callable[[Installation, random.Random], None]
    possible: Callable[[Installation], bool] = lambda made: True


def _kill(command: str) -> Callable[[Installation, random.Random], None]:
    def happen(made: Installation, chance: random.Random) -> None:
        os.kill(chance.choice(made.children(command)), signal.SIGKILL)

    return happen


def _freeze(command: str) -> Callable[[Installation, random.Random], None]:
    def happen(made: Installation, chance: random.Random) -> None:
        pid, seconds = chance.choice(made.children(command)), chance.uniform(0.5, 4)
        os.kill(pid, signal.SIGSTOP)
        try:
            time.sleep(seconds)
        finally:
            os.kill(pid, signal.SIGCONT)

    return happen


def _kill_supervisor(made: Installation, chance: random.Random) -> None:
    made.kill()
    made.start()


def _restart(made: Installation, chance: random.Random) -> None:
    made.stop()
    made.start()


def _full_disk(made: Installation, chance: random.Random) -> None:
    ballast = made.fill_disk()
    try:
        time.sleep(chance.uniform(1, 4))
    finally:
        ballast.unlink()


def _restart_postgres(made: Installation, chance: random.Random) -> None:
    assert made.postgres is not None
    made.postgres.stop()
    time.sleep(chance.uniform(0, 3))
    made.postgres.start()


def _restart_redis(made: Installation, chance: random.Random) -> None:
    assert made.redis is not None
    made.redis.kill()
    time.sleep(chance.uniform(0, 3))
    made.redis.start()


FAULTS = (
    Fault("kill -9 of a web process", _kill("web")),
    Fault("kill -9 of the egress process", _kill("egress")),
    Fault("kill -9 of the supervisor", _kill_supervisor),
    Fault("a planned restart", _restart),
    Fault("SIGSTOP of a web process", _freeze("web")),
    Fault("SIGSTOP of the egress process", _freeze("egress")),
    Fault("a full disk", _full_disk, lambda made: made.is_own_disk),
    Fault("a restart of PostgreSQL", _restart_postgres, lambda made: made.postgres is not None),
    Fault("kill -9 and restart of Redis", _restart_redis, lambda made: made.redis is not None),
)


def faults(made: Installation, chance: random.Random) -> Iterator[Fault]:
    """All that are possible here, in an order that the seed decides, again and again."""
    possible = [fault for fault in FAULTS if fault.possible(made)]
    while True:
        yield from chance.sample(possible, len(possible))
