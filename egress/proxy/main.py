"""`manage.py egress`: the data plane's process, from start to a stop that lets open requests finish."""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import json
import logging
import resource
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import uvloop

from botbottle import environment, home
from botbottle.environment import BadSetting
from botbottle.processes import die_with_supervisor
from egress import dlp
from egress.errors import PolicyError
from egress.hostnames import check_askable

from .config import Config, from_environment
from .control import Control
from .dialing import Lookup, system_lookup
from .listeners import Listeners
from .plane import DataPlane

log = logging.getLogger(__name__)
CONTROL_SOCKET, DISCOVERY = "egress.sock", "egress.json"


def main(arguments: Sequence[str] = ()) -> int:
    """`arguments` follow "egress"."""
    options = _parser().parse_args(arguments)
    try:
        level = logging.DEBUG if environment.flag("EGRESS_DEBUG") else logging.INFO
        logging.basicConfig(level=level, stream=sys.stderr, format="egress %(levelname)s %(message)s")
        logging.getLogger("asyncio").setLevel(logging.WARNING)
        die_with_supervisor()
        return run(from_environment(), as_json=options.json)
    except BadSetting as problem:
        sys.stderr.write(f"bot-bottle: {problem}\n")
        return 2


def run(config: Config, *, lookup: Lookup = system_lookup, as_json: bool = False) -> int:
    """Serve until SIGTERM or SIGINT. Raises BadSetting. `lookup` is how names become addresses."""
    home.prepare(config.home)
    config.run.mkdir(mode=0o700, exist_ok=True)
    config.bottles.mkdir(mode=0o700, exist_ok=True)
    _raise_file_limit()
    with _alone(config.run / "egress.lock"), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(config, lookup, as_json=as_json))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("manage.py egress", description="Serve the bottles' only way out.")
    parser.add_argument("--json", action="store_true", help="say where it is as one line of JSON")
    return parser


async def _serve(config: Config, lookup: Lookup, *, as_json: bool) -> None:
    plane = DataPlane(config, lookup=lookup)
    listeners = Listeners(plane)
    control = Control(plane, listeners)
    background = [asyncio.create_task(plane.watch.run()), asyncio.create_task(plane.tick())]
    stop = _signals(listeners, background)
    discovery = config.run / DISCOVERY
    try:
        await asyncio.to_thread(_warm_up)  # before anybody can ask for it on the loop
        await listeners.refresh_all()
        if config.port is not None:
            await listeners.open_tcp(config.bind, config.port)
        await control.open(config.run / CONTROL_SOCKET)
        home.write_private(discovery, json.dumps({"port": listeners.port}) + "\n")
        if as_json:
            sys.stdout.write(json.dumps({"bind": config.bind, "port": listeners.port}) + "\n")
            sys.stdout.flush()
        log.info("ready: %d bottles, TCP port %s", len(plane.bottles), listeners.port)
        await stop.wait()
        log.info("stopping")
    finally:
        discovery.unlink(missing_ok=True)
        (config.run / CONTROL_SOCKET).unlink(missing_ok=True)
        listeners.close()
        await plane.stop()
        await control.close()
        await listeners.finish()
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)


def _signals(listeners: Listeners, background: list[asyncio.Task[None]]) -> asyncio.Event:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    async def refresh() -> None:
        await listeners.refresh_all()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, lambda: background.append(loop.create_task(refresh())))
    return stop


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Two data planes on one home would take each other's sockets away."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise BadSetting(f"Another egress process serves {path.parent.parent}. Stop it first.") from error
        yield


def _warm_up() -> None:
    """The first request would otherwise compile the searches, the first refusal load the public suffixes."""
    dlp.shapes()
    dlp.injections()
    with suppress(PolicyError):
        check_askable("münchen.example")


def _raise_file_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if hard != resource.RLIM_INFINITY else 65536
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
