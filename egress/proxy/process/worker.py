"""Runs one egress process, from its first bottle to a stop that lets open requests finish."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import signal
import socket
import ssl
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from botbottle.core.environment import BadSetting
from botbottle.core.files import write_private
from egress.contract import sharding
from egress.dlp import scanner
from egress.policy.errors import PolicyError
from egress.policy.hostnames import check_askable
from egress.proxy.config import Config
from egress.proxy.credentials.secrets import Secrets
from egress.proxy.fast.fast_path import FastPath
from egress.proxy.fast.write_batch import WriteBatch
from egress.proxy.net.deadline_timer import DeadlineTimer
from egress.proxy.net.dialing import Lookup, Resolver, system_lookup
from egress.proxy.net.fair_scheduler import FairScheduler
from egress.proxy.process.control import Control
from egress.proxy.process.event_loop import Loop
from egress.proxy.process.listeners import Listeners
from egress.proxy.process.prefork import Sockets
from egress.proxy.state.bottles import Bottles
from egress.proxy.state.connection_limits import UnauthenticatedConnections
from egress.proxy.state.pipelock_file import GateFile
from egress.proxy.state.proxy import OpenSessions, Proxy
from egress.proxy.state.records import Records
from egress.proxy.state.scanners import Scanners
from egress.proxy.tls.authority import ignore_unreadable_names
from egress.proxy.tls.session import upstream_context

log = logging.getLogger(__name__)
_TO_END_SECONDS = 0.5
_REMEDY = "install newuidmap, and give this account a range in /etc/subuid (docs/use/bottles-local.md)"
_LAST_MOMENT_SECONDS = 1.0  # for records to be read: nobody can ask for them afterwards


def serve(config: Config, sockets: Sockets, lookup: Lookup | None = None) -> None:
    """Serve this process's bottles until SIGTERM or SIGINT. Raises BadSetting."""
    _raise_file_limit()
    ignore_unreadable_names()
    if config.processes > 1:
        _use_batch_scheduling()
    with asyncio.Runner(loop_factory=Loop) as runner:
        if isinstance(loop := runner.get_loop(), Loop) and not loop.is_apart:
            log.info("bottles of this account can use up what the kernel watches for us: %s", _REMEDY)
        runner.run(_serve(config, sockets, lookup or system_lookup))


async def _serve(config: Config, sockets: Sockets, lookup: Lookup) -> None:
    proxy = build_proxy(config, lookup, sockets.neighbours)
    listeners = Listeners(proxy, partial(FastPath, proxy, WriteBatch()) if config.fast_path else None)
    control = Control(proxy, listeners)
    background = [asyncio.create_task(proxy.watch.run()), asyncio.create_task(proxy.bottles.maintain())]
    stop = _signals(listeners, background)
    try:
        await asyncio.to_thread(_warm_up)  # before a request would do it on the event loop
        await listeners.refresh_all()
        if sockets.neighbours:
            listeners.receive_from(sockets.incoming[config.number])
        await listeners.open_tcp(sockets.tcp)
        await control.open(config.control_socket)
        if config.processes == 1:
            config.publish(listeners.port)
        log.info("ready: %d bottles, TCP port %s", len(proxy.bottles), listeners.port)
        _tune_gc()
        await stop.wait()
        log.info("stopping")
        with suppress(OSError):  # on a full disk the next start only looks unplanned
            write_private(sharding.stop_note(config.run, config.number), proxy.records.boot)
    finally:
        if config.processes == 1:
            config.discovery.unlink(missing_ok=True)
        listeners.close()
        await _finish(proxy)
        await listeners.finish()
        await proxy.records.read_out(_LAST_MOMENT_SECONDS)
        config.control_socket.unlink(missing_ok=True)
        await control.close()
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)


def build_proxy(
    config: Config, lookup: Lookup = system_lookup, neighbours: Sequence[socket.socket] = ()
) -> Proxy:
    """Raises BadSetting."""
    secrets = Secrets(config.home)
    return Proxy(
        config=config,
        neighbours=neighbours,
        resolver=Resolver(lookup),
        upstream_tls=_upstream_tls(config),
        secrets=secrets,
        scanners=Scanners(secrets),
        watch=DeadlineTimer(leaving_seconds=config.limits.leaving_seconds),
        turns=FairScheduler(),
        records=Records(),
        bottles=Bottles(config),
        gate_file=GateFile(config),
        unauthenticated=UnauthenticatedConnections(config.limits.connections),
        sessions=OpenSessions(),
    )


def _upstream_tls(config: Config) -> ssl.SSLContext:
    try:
        return upstream_context(config.upstream_ca)
    except OSError as error:
        raise BadSetting(f"EGRESS_UPSTREAM_CA={config.upstream_ca} cannot be used: {error}.") from error


async def _finish(proxy: Proxy) -> None:
    """Let open requests finish, within the limit, then cut the rest."""
    await proxy.sessions.finish(proxy.limits.stop_seconds)
    proxy.bottles.close()
    await proxy.sessions.wait_until_none(_TO_END_SECONDS)  # so that cut requests leave their records


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
    """Compile the searches and load the public suffixes, which the first request would otherwise wait for."""
    scanner.shapes()
    scanner.injections()
    with suppress(PolicyError):
        check_askable("münchen.example")


def _tune_gc() -> None:
    """Run the cyclic GC rarely and freeze start-up objects: default settings cost about 3 % CPU.

    The objects of a request are freed when it ends.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 100)


def _use_batch_scheduling() -> None:
    """Use SCHED_BATCH so that we do not pre-empt the sender on every packet; on two cores this cost a third
    of tunnel throughput. On an idle core nothing changes.
    """
    with suppress(OSError):  # some sandboxes forbid it
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _raise_file_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if hard != resource.RLIM_INFINITY else 65536
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
