"""Every bottle as the data plane knows it: its table, loaded from files and swapped by one assignment.

Trust boundary: files may be missing, torn or old. The last good table stays; without one, all is denied.
"""

from __future__ import annotations

import asyncio
import hmac
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Protocol

from egress.contract.ack import Ack
from egress.policy.errors import BadSnapshot
from egress.policy.routes import Auth, Route
from egress.policy.table import RouteTable, Snapshot
from egress.proxy.config import Limits
from egress.proxy.net.pool import Pool
from egress.proxy.state import config_files
from egress.proxy.state.active_scan import ActiveScan
from egress.proxy.state.bottle_files import Identity, load_table, problem_text, read_identity
from egress.proxy.state.config_files import PublishedConfig
from egress.proxy.state.lease_counter import LeaseCounter
from egress.proxy.state.open_flows import Flows
from egress.proxy.state.secret_variables import SecretVariablesFile
from egress.proxy.tls.authority import Authority


class OpenConnection(Protocol):
    """One that the bottle's own side opened."""

    @property
    def by_token(self) -> bool:
        """Whether a token says whose it is, not a socket."""

    def cut(self) -> None:
        """End it at once, with what is under way on it."""


class BottleState:
    def __init__(self, slug: str, directory: Path, limits: Limits) -> None:
        self.slug = slug
        self.directory = directory
        self.snapshot = Snapshot(slug, 0, RouteTable(), "")  # denies everything
        self.loaded_at: datetime | None = None
        self.problem: str | None = "no route table was ever loaded: everything is denied"
        self.flows = Flows()
        self.pool = Pool(limits.pooled)
        self.uses = LeaseCounter(directory / "uses.json")
        self.counters: Counter[str] = Counter()
        self.connections: set[OpenConnection] = set()
        self.line = asyncio.Lock()  # of connections that sent several requests at once, or a long one
        self.is_gone = False
        self.held_bytes = 0
        self.search: ActiveScan | None = None
        self.handed = SecretVariablesFile(directory)
        self.identity = Identity(None, supervise=False)
        self._published: PublishedConfig | None = None
        self._authority: Authority | None = None
        self._loading = asyncio.Lock()

    @property
    def authority(self) -> Authority:
        """Made on first use. Raises OSError or ValueError when the bottle's CA cannot be read."""
        if self._authority is None:
            self._authority = Authority(self.directory, self.slug)
        return self._authority

    def knows_token(self, token: bytes) -> bool:
        digest = sha256(token).hexdigest().encode("ascii")
        known = self.identity.token_sha256
        return known is not None and hmac.compare_digest(digest, known)

    def _take_identity(self, fresh: Identity) -> None:
        is_new_token = fresh.token_sha256 != self.identity.token_sha256
        self.identity = fresh
        for connection in list(self.connections):
            if connection.by_token and is_new_token:
                connection.cut()  # the old token is not this bottle's any more

    async def reload(self) -> Ack:
        """Read the files again and swap, or keep what is live and say why. Cuts what is now forbidden."""
        async with self._loading:
            try:
                self._swap(await load_table(self.directory, self.slug))
            except (OSError, ValueError) as error:
                self.problem = f"{problem_text(error)} Version {self.snapshot.version} stays live."
            # The other files apart: a problem with one does not keep a revoked route open.
            self._collect_problem(lambda: self._take_identity(read_identity(self.directory, self.slug)))
            await self._publish()
            return self.ack()

    async def refresh_config_files(self) -> None:
        """Rewrite the bottle's config files when a lease has ended since they were written."""
        if self._published is not None and self._published.routes != self._reachable():
            async with self._loading:
                await self._publish()

    async def _publish(self) -> None:
        self._published = fresh = PublishedConfig(self.snapshot.version, self._reachable())
        texts = await asyncio.to_thread(config_files.render, self.slug, fresh)
        if not self.is_gone:  # or another bottle that has got its name would read them
            self._collect_problem(lambda: config_files.write(self.directory, texts))

    def _reachable(self) -> tuple[Route, ...]:
        """Those that a request could still use."""
        routes = self.snapshot.table.open_routes(datetime.now(UTC))
        return tuple(route for route in routes if self.uses.left(route) != 0)

    def _collect_problem(self, step: Callable[[], None]) -> None:
        try:
            step()
        except (OSError, ValueError) as error:
            self.problem = self.problem or f"{problem_text(error)} Version {self.snapshot.version} is live."

    def ack(self) -> Ack:
        return Ack(self.slug, self.snapshot.version, self.loaded_at, self.problem)

    def _swap(self, fresh: Snapshot) -> None:
        if fresh.version < self.snapshot.version:
            raise BadSnapshot(
                f"the files hold version {fresh.version}, older than the live one."
                " Restart the egress process to go back"
            )
        now = datetime.now(UTC)
        if self.loaded_at is None or fresh.version != self.snapshot.version:
            self.loaded_at = now
        self.snapshot = fresh
        self.problem = None
        self.uses.forget_others(fresh.table.routes)
        self.counters["cut"] += self.flows.cut_forbidden(fresh, now)

    def wanted_secrets(self) -> list[Auth]:
        """What its routes need, each once."""
        routes = self.snapshot.table.open_routes(datetime.now(UTC))
        wanted = {(route.auth.token_ref, route.auth.scheme): route.auth for route in routes if route.auth}
        return [auth for _, auth in sorted(wanted.items())]

    def close(self) -> None:
        """End everything of this bottle: another one may get its name."""
        self.is_gone = True
        self.snapshot = Snapshot(self.slug, 0, RouteTable(), "")
        for connection in list(self.connections):
            connection.cut()
        self.pool.close()
