"""`manage.py egress`: the data plane, as one process or as several that share the bottles."""

from __future__ import annotations

import argparse
import fcntl
import logging
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING

from botbottle.core import environment, home
from botbottle.core.environment import BadSetting
from botbottle.core.processes import die_with_supervisor
from egress.contract import sharding
from egress.proxy.config import Config, from_environment
from egress.proxy.process import prefork, tcp
from egress.proxy.process.prefork import Sockets

if TYPE_CHECKING:
    from egress.proxy.net.dialing import Lookup


def main(arguments: Sequence[str] = ()) -> int:
    """`arguments` follow "egress"."""
    options = _parser().parse_args(arguments)
    try:
        level = logging.DEBUG if environment.flag("EGRESS_DEBUG") else logging.INFO
        logging.basicConfig(level=level, stream=sys.stderr, format="egress %(levelname)s %(message)s")
        logging.getLogger("asyncio").setLevel(logging.WARNING)
        return run(replace(from_environment(), as_json=options.json))
    except BadSetting as problem:
        sys.stderr.write(f"bot-bottle: {problem}\n")
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("manage.py egress", description="Serve the bottles' only way out.")
    parser.add_argument("--json", action="store_true", help="say where it is as one line of JSON")
    return parser


def run(config: Config, *, lookup: Lookup | None = None) -> int:
    """Serve until SIGTERM or SIGINT. Raises BadSetting. `lookup` is how names become addresses."""
    if part := prefork.inherited_slot():
        die_with_supervisor(signal.SIGKILL)  # its successor starts at once, and opens the same sockets
        config = replace(config, processes=part.processes, number=part.number)
        return _serve(config, Sockets.inherited(part.descriptors), lookup)
    die_with_supervisor()
    home.prepare(config.home)
    config.run.mkdir(mode=0o700, exist_ok=True)
    config.bottles.mkdir(mode=0o700, exist_ok=True)
    with _alone(config.run / "egress.lock") as lock:
        _forget_the_killed(config)
        listening = tcp.listen(config.bind, config.port) if config.port is not None else []
        if config.processes > 1:
            return prefork.run(config, listening, lock.fileno())
        return _serve(config, Sockets(listening), lookup)


def _serve(config: Config, sockets: Sockets, lookup: Lookup | None) -> int:
    from egress.proxy.process.worker import serve  # noqa: PLC0415 - most of our memory, and a parent needs none of it

    serve(config, sockets, lookup)
    return 0


def _forget_the_killed(config: Config) -> None:
    """Remove what a killed run has left: it may have had more processes."""
    config.forget_the_killed()
    for number in range(config.processes, sharding.MOST):
        sharding.control_socket(config.run, number).unlink(missing_ok=True)


@contextmanager
def _alone(path: Path) -> Iterator[IO[str]]:
    """Hold the home's lock: two data planes would take each other's sockets away."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise BadSetting(f"Another egress process serves {path.parent.parent}. Stop it first.") from error
        yield file
