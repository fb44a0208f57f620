"""What the requests of one process share. Built in process/worker.py."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass

from egress.proxy.config import Config, Limits
from egress.proxy.credentials.secrets import Secrets
from egress.proxy.net.deadline_timer import DeadlineTimer
from egress.proxy.net.dialing import Resolver
from egress.proxy.net.fair_scheduler import FairScheduler
from egress.proxy.net.wakeup import Wakeup
from egress.proxy.state.bottles import Bottles
from egress.proxy.state.connection_limits import UnauthenticatedConnections
from egress.proxy.state.pipelock_file import GateFile
from egress.proxy.state.records import Records
from egress.proxy.state.scanners import Scanners


class OpenSessions(set[Wakeup]):
    """The client connections that are being served, by what wakes the task of each."""

    def __init__(self) -> None:
        super().__init__()
        self.are_ending = False  # each ends when its request is done

    async def finish(self, seconds: float) -> None:
        """Let what is under way come to its end, within the limit."""
        self.are_ending = True
        for wakeup in list(self):
            wakeup.ring()
        await self.wait_until_none(seconds)

    async def wait_until_none(self, seconds: float) -> None:
        clock = asyncio.get_running_loop().time
        deadline = clock() + seconds
        while self and clock() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


@dataclass(frozen=True, slots=True)
class Proxy:
    """`neighbours` is where to pass connections to, one socket for each process."""

    config: Config
    neighbours: Sequence[socket.socket]
    resolver: Resolver
    upstream_tls: ssl.SSLContext
    secrets: Secrets
    scanners: Scanners
    watch: DeadlineTimer
    turns: FairScheduler
    records: Records
    bottles: Bottles
    gate_file: GateFile
    unauthenticated: UnauthenticatedConnections
    sessions: OpenSessions

    @property
    def limits(self) -> Limits:
        return self.config.limits

    @property
    def stopping(self) -> bool:
        return self.sessions.are_ending
