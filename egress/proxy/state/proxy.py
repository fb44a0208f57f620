"""What the requests of one process share. Built in process/worker.py; no logic of its own."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass

from egress.proxy.config import Config, Limits
from egress.proxy.credentials.secrets import Secrets
from egress.proxy.net.deadline_timer import DeadlineTimer
from egress.proxy.net.dialing import Resolver
from egress.proxy.net.fair_scheduler import FairScheduler
from egress.proxy.state.bottles import Bottles
from egress.proxy.state.open_sessions import OpenSessions
from egress.proxy.state.pipelock_file import GateFile
from egress.proxy.state.records import Records
from egress.proxy.state.scanners import Scanners
from egress.proxy.state.unauthenticated import UnauthenticatedConnections


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
