"""Every bottle as the data plane knows it: its table, loaded from files and swapped by one assignment.

Trust boundary: files may be missing, torn or old. The last good table stays; without one, all is denied.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

from egress.contract import snapshot as snapshots
from egress.contract.ack import Ack
from egress.policy.errors import BadSnapshot
from egress.policy.routes import Auth, Route
from egress.policy.table import RouteTable, Snapshot
from egress.proxy.config import TOLD, Limits
from egress.proxy.fast.head_cache import HeadCache
from egress.proxy.net.buffers import BufferBudget
from egress.proxy.net.pool import Pool
from egress.proxy.net.splice import Pipes
from egress.proxy.state import config_files
from egress.proxy.state.active_scan import ActiveScan
from egress.proxy.state.config_files import PublishedConfig
from egress.proxy.state.lease_counter import LeaseCounter
from egress.proxy.state.open_flows import Flows
from egress.proxy.state.secret_variables import SecretVariablesFile
from egress.proxy.tls.authority import Authority

SLUG = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_IDENTITY = "identity.json"
_TORN_READS = 5  # the publisher writes two files: a reader may come between
_BETWEEN_READS = 0.02


@dataclass(frozen=True, slots=True)
class Identity:
    token_sha256: bytes | None  # None: the bottle has only its sockets
    supervise: bool  # whether it may ask for anything


class OpenConnection(Protocol):
    """One that the bottle's own side opened."""

    @property
    def by_token(self) -> bool:
        """Whether a token says whose it is, not a socket."""

    def cut(self) -> None:
        """End it at once, with what is under way on it."""


class Bottle:
    def __init__(self, slug: str, directory: Path, limits: Limits) -> None:
        self.slug = slug
        self.directory = directory
        self.snapshot = Snapshot(slug, 0, RouteTable(), "")  # denies everything
        self.loaded_at: datetime | None = None
        self.problem: str | None = "no route table was ever loaded: everything is denied"
        self.flows = Flows()
        self.pool = Pool(limits.pooled)
        self.berths = BufferBudget(limits.in_flight_bytes, limits.connections + TOLD)
        self.pipes = Pipes()
        self.uses = LeaseCounter(directory / "uses.json")
        self.counters: Counter[str] = Counter()
        self.connections: set[OpenConnection] = set()
        self.line = asyncio.Lock()  # of those that have asked for more than one thing at once, or at length
        self.is_gone = False
        self.held_bytes = 0
        self.search: ActiveScan | None = None
        self.habits = HeadCache()
        self.handed = SecretVariablesFile(directory)
        self.identity = Identity(None, supervise=False)
        self._told: PublishedConfig | None = None
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
                connection.cut()  # whoever has the old token is no longer this bottle

    async def reload(self) -> Ack:
        """Read the files again and swap, or keep what is live and say why. Cuts what is now forbidden."""
        async with self._loading:
            try:
                self._swap(await _load_steadily(self.directory, self.slug))
            except (OSError, ValueError) as error:
                self.problem = f"{_sentence(error)} Version {self.snapshot.version} stays live."
            # Each of the other files by itself: what is wrong with it keeps no route from being taken away.
            self._collect_problem(lambda: self._take_identity(read_identity(self.directory, self.slug)))
            await self._tell()
            return self.ack()

    async def refresh_config_files(self) -> None:
        """What the bottle reads of its table holds no route whose lease has ended since."""
        if self._told is not None and self._told.routes != self._reachable():
            async with self._loading:
                await self._tell()

    async def _tell(self) -> None:
        self._told = fresh = PublishedConfig(self.snapshot.version, self._reachable())
        texts = await asyncio.to_thread(config_files.render, self.slug, fresh)
        if not self.is_gone:  # or the files would be another bottle's that has got its name
            self._collect_problem(lambda: config_files.write(self.directory, texts))

    def _reachable(self) -> tuple[Route, ...]:
        """Those that a request could still use."""
        routes = self.snapshot.table.open_routes(datetime.now(UTC))
        return tuple(route for route in routes if self.uses.left(route) != 0)

    def _collect_problem(self, step: Callable[[], None]) -> None:
        try:
            step()
        except (OSError, ValueError) as error:
            self.problem = self.problem or f"{_sentence(error)} Version {self.snapshot.version} is live."

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
        """Nobody speaks as this bottle any more: another one may get its name."""
        self.is_gone = True
        self.snapshot = Snapshot(self.slug, 0, RouteTable(), "")
        for connection in list(self.connections):
            connection.cut()
        self.pool.close()

    def status(self) -> dict[str, Any]:
        return {
            **self.ack().as_dict(),
            "connections": len(self.connections),
            "held_bytes": self.held_bytes,
            "flows": len(self.flows),
            "pooled": len(self.pool),
            "counters": dict(self.counters),
        }


def exists(directory: Path) -> bool:
    """A bottle is there as long as its directory holds an identity or a table."""
    return (directory / _IDENTITY).is_file() or (directory / "routes.yaml").is_file()


def found_in(bottles: Path) -> list[str]:
    if not bottles.is_dir():
        return []
    return sorted(entry.name for entry in bottles.iterdir() if SLUG.fullmatch(entry.name) and exists(entry))


def read_identity(directory: Path, slug: str) -> Identity:
    """Raises ValueError."""
    try:
        identity = json.loads((directory / _IDENTITY).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Identity(None, supervise=True)
    except ValueError as error:
        raise ValueError("identity.json is not valid JSON") from error
    if not isinstance(identity, dict) or identity.get("slug") != slug:
        raise ValueError("identity.json names another bottle")
    digest = identity.get("token_sha256")
    if not isinstance(digest, str) or not re.fullmatch(r"[0-9a-f]{64}", digest):
        raise ValueError("identity.json has no token_sha256 of 64 hex digits")
    supervise = identity.get("supervise", True)
    if not isinstance(supervise, bool):
        raise ValueError("identity.json says neither true nor false of supervise")
    return Identity(digest.encode("ascii"), supervise)


async def _load_steadily(directory: Path, slug: str) -> Snapshot:
    for attempt in range(_TORN_READS):
        try:
            return await asyncio.to_thread(_load, directory, slug)
        except BadSnapshot:
            if attempt == _TORN_READS - 1:
                raise
        await asyncio.sleep(_BETWEEN_READS)
    raise AssertionError("unreachable")


def _load(directory: Path, slug: str) -> Snapshot:
    try:
        texts = [(directory / name).read_text(encoding="utf-8") for name in ("routes.yaml", "gate.yaml")]
    except UnicodeDecodeError as error:
        raise BadSnapshot("the snapshot is not UTF-8 text") from error
    fresh = snapshots.load(*texts)
    if fresh.bottle != slug:
        raise BadSnapshot("the snapshot belongs to another bottle")
    return fresh


def _sentence(error: Exception) -> str:
    text = f"{Path(error.filename).name} is missing" if isinstance(error, FileNotFoundError) else str(error)
    return text + "."
