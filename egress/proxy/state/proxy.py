"""The state of the data plane: its settings, its bottles and what they share."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Sequence
from datetime import UTC, datetime
from time import monotonic
from typing import Any

from botbottle.core.environment import BadSetting
from egress.contract.ack import Ack
from egress.policy.routes import Auth
from egress.proxy.config import Config
from egress.proxy.credentials.secrets import Secrets
from egress.proxy.credentials.sigv4 import AwsKey
from egress.proxy.fast.write_batch import WriteBatch
from egress.proxy.net.connection import DeadlineTimer, Wakeup
from egress.proxy.net.dialing import Lookup, Resolver, system_lookup
from egress.proxy.net.fair_scheduler import FairScheduler
from egress.proxy.state.active_scan import Scanners
from egress.proxy.state.bottle import Bottle
from egress.proxy.state.pipelock_file import GateFile
from egress.proxy.state.records import Records
from egress.proxy.state.unauthenticated import UnauthenticatedConnections
from egress.proxy.tls.authority import ensure as ensure_ca
from egress.proxy.tls.openssl import TlsError, Trust

log = logging.getLogger(__name__)
_TO_END_SECONDS = 0.5


class Proxy:
    def __init__(
        self, config: Config, *, lookup: Lookup = system_lookup, neighbours: Sequence[socket.socket] = ()
    ) -> None:
        """`neighbours` is where to hand connections over to, one for each process."""
        self.config = config
        self.neighbours = neighbours
        self.limits = config.limits
        self.resolver = Resolver(lookup)
        self.upstream_tls = _trust(config)
        self.secrets = Secrets(config.home)
        self.scanners = Scanners(self.secrets)
        self.watch = DeadlineTimer(leaving_seconds=self.limits.leaving_seconds)
        self.write_batch = WriteBatch()
        self.turns = FairScheduler()
        self.records = Records()
        self.bottles: dict[str, Bottle] = {}
        self.unauthenticated = UnauthenticatedConnections(self.limits.connections)
        self.stopping = False
        self._gate_file = GateFile(config)
        self._gate_writing = asyncio.Lock()
        self.conversations: set[Wakeup] = set()  # a stop rings these, and waits for all of them to go
        self.started_at = datetime.now(UTC).isoformat(timespec="seconds")

    def bottle_with_token(self, slug: str, token: bytes) -> Bottle | None:
        bottle = self.bottles.get(slug)
        return bottle if bottle is not None and bottle.knows_token(token) else None

    async def load(self, slug: str) -> tuple[Bottle, Ack]:
        """The bottle, made if it is new, with its files read again."""
        bottle = self.bottles.get(slug)
        if bottle is None:
            bottle = Bottle(slug, self.config.bottles / slug, self.limits)
            self.bottles[slug] = bottle
            self._make_ca(bottle)
        ack = await bottle.reload()
        log.log(
            logging.WARNING if ack.problem else logging.INFO,
            "bottle %s: version %d is live%s",
            slug,
            ack.version,
            f"; {ack.problem}" if ack.problem else "",
        )
        return bottle, ack

    def _make_ca(self, bottle: Bottle) -> None:
        """Before the bottle starts, because its certificate goes into it."""
        try:
            ensure_ca(bottle.directory, bottle.slug)
        except (OSError, ValueError) as error:
            log.error("bottle %s: its CA cannot be used: %s", bottle.slug, error)

    async def write_pipelock(self) -> str | None:
        """Have the operator's pipelock, when there is one, let through what the tables do.

        It notices a new file by itself, and this ends when it has. Returns what kept it from hearing.
        """
        if self.config.gateway is None:
            return None
        async with self._gate_writing:  # or what was known earlier could be written later
            hosts = {host for bottle in self.bottles.values() for host in bottle.snapshot.table.gate_hosts}
            try:
                await asyncio.to_thread(self._gate_file.write, hosts)
            except OSError as error:
                log.error("pipelock.yaml cannot be written: %s", error.strerror)
                return f"pipelock.yaml cannot be written: {error.strerror}. The gate has an older list."
        await asyncio.sleep(self._gate_file.settles_in())
        return None

    def forget(self, slug: str) -> None:
        bottle = self.bottles.pop(slug, None)
        if bottle is not None:
            bottle.close()

    async def tick(self) -> None:
        """Once a second: end leases, and say so; let go of idle connections; save counts."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(1)
            now = datetime.now(UTC)
            for bottle in list(self.bottles.values()):
                bottle.counters["cut"] += bottle.flows.cut_forbidden(bottle.snapshot, now, leased_only=True)
                bottle.pool.prune(loop.time())
                self._save_uses(bottle)
                await bottle.refresh_config_files()

    def _save_uses(self, bottle: Bottle) -> None:
        try:
            bottle.uses.save()
        except OSError as error:
            log.warning("bottle %s: lease uses cannot be saved: %s", bottle.slug, error.strerror)

    async def stop(self) -> None:
        """Let what is under way finish, within the limit, then cut the rest."""
        self.stopping = True
        for bell in list(self.conversations):
            bell.ring()
        await self._until_quiet(self.limits.stop_seconds)
        for bottle in self.bottles.values():
            bottle.close()
            self._save_uses(bottle)
        await self._until_quiet(_TO_END_SECONDS)  # what was cut leaves its record

    async def _until_quiet(self, seconds: float) -> None:
        deadline = asyncio.get_running_loop().time() + seconds
        while self.conversations and asyncio.get_running_loop().time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.02)

    def status(self) -> dict[str, Any]:
        return {
            "started_at": self.started_at,
            "stopping": self.stopping,
            "connections": len(self.watch),
            "strangers": len(self.unauthenticated),
            "bottles": {slug: self._bottle_status(bottle) for slug, bottle in sorted(self.bottles.items())},
        }

    def _bottle_status(self, bottle: Bottle) -> dict[str, Any]:
        problems = [self._problem_with(auth) for auth in bottle.wanted_secrets()]
        problems.append(bottle.handed.look(monotonic()).problem)
        told = dict.fromkeys(problem for problem in problems if problem)
        return {**bottle.status(), "credential_problems": list(told)}

    def _problem_with(self, auth: Auth) -> str | None:
        problem, name = self.secrets.problem(auth.token_ref), auth.token_ref
        if problem or auth.scheme != "SigV4" or AwsKey.parse(self.secrets.lookup(name) or ""):
            return problem
        return f"The secret {name} is no key for AWS: write ACCESS_KEY_ID:SECRET_ACCESS_KEY in its place."


def _trust(config: Config) -> Trust:
    try:
        return Trust(config.upstream_ca)
    except TlsError as error:
        raise BadSetting(f"EGRESS_UPSTREAM_CA: of authorities, {error}.") from error
