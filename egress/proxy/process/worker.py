"""One egress process at work, from its first bottle to a stop that lets open requests finish."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import signal
from contextlib import suppress

from botbottle.core.files import write_private
from egress.contract import sharding
from egress.dlp import scanner
from egress.policy.errors import PolicyError
from egress.policy.hostnames import check_askable
from egress.proxy.config import Config
from egress.proxy.net.dialing import Lookup, system_lookup
from egress.proxy.process.control import Control
from egress.proxy.process.event_loop import Loop
from egress.proxy.process.listeners import Listeners
from egress.proxy.process.prefork import Sockets
from egress.proxy.state.proxy import Proxy

log = logging.getLogger(__name__)
_REMEDY = "install newuidmap, and give this account a range in /etc/subuid (docs/use/bottles-local.md)"
_LAST_MOMENT_SECONDS = 1.0  # for records to be read: nobody can ask for them afterwards


def serve(config: Config, sockets: Sockets, lookup: Lookup | None = None) -> None:
    """Serve this process's bottles until SIGTERM or SIGINT. Raises BadSetting."""
    _raise_file_limit()
    if config.processes > 1:
        _use_batch_scheduling()
    with asyncio.Runner(loop_factory=Loop) as runner:
        if isinstance(loop := runner.get_loop(), Loop) and not loop.is_apart:
            log.info("bottles of this account can use up what the kernel watches for us: %s", _REMEDY)
        runner.run(_serve(config, sockets, lookup or system_lookup))


async def _serve(config: Config, sockets: Sockets, lookup: Lookup) -> None:
    proxy = Proxy(config, lookup=lookup, neighbours=sockets.neighbours)
    listeners = Listeners(proxy)
    control = Control(proxy, listeners)
    background = [asyncio.create_task(proxy.watch.run()), asyncio.create_task(proxy.tick())]
    stop = _signals(listeners, background)
    try:
        await asyncio.to_thread(_warm_up)  # before anybody can ask for it on the loop
        await listeners.refresh_all()
        if sockets.neighbours:
            listeners.open_reception(sockets.incoming[config.number])
        await listeners.open_tcp(sockets.tcp)
        await control.open(config.control_socket)
        if config.processes == 1:
            config.tell(listeners.port)
        log.info("ready: %d bottles, TCP port %s", len(proxy.bottles), listeners.port)
        _tune_gc()
        await stop.wait()
        log.info("stopping")
        with suppress(OSError):  # on a full disk the next start looks unplanned, and no more
            write_private(sharding.stop_note(config.run, config.number), proxy.records.boot)
    finally:
        if config.processes == 1:
            config.discovery.unlink(missing_ok=True)
        listeners.close()
        await proxy.stop()
        await listeners.finish()
        await proxy.records.read_out(_LAST_MOMENT_SECONDS)
        config.control_socket.unlink(missing_ok=True)
        await control.close()
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


def _warm_up() -> None:
    """The first request would otherwise compile the searches, the first refusal load the public suffixes."""
    scanner.shapes()
    scanner.injections()
    with suppress(PolicyError):
        check_askable("münchen.example")


def _tune_gc() -> None:
    """What a request makes is freed when it ends. Looking for circles as often as Python does by itself, also
    among all that stays for good, takes a thirtieth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 100)


def _use_batch_scheduling() -> None:
    """Where cores are scarce, being woken in place of whoever has just sent us something makes many turns of
    few bytes: a third of the rate of tunnels was lost to it. On an idle core nothing changes."""
    with suppress(OSError):  # some sandboxes forbid it
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _raise_file_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if hard != resource.RLIM_INFINITY else 65536
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
