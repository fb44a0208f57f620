"""The bottles that one process serves: loaded, kept up to date, and forgotten."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime

from egress.contract.ack import Ack
from egress.proxy.config import Config
from egress.proxy.state.bottle import BottleState
from egress.proxy.tls.authority import ensure as ensure_ca

log = logging.getLogger(__name__)


class Bottles(dict[str, BottleState]):
    """By slug."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self._config = config

    def with_token(self, slug: str, token: bytes) -> BottleState | None:
        bottle = self.get(slug)
        return bottle if bottle is not None and bottle.knows_token(token) else None

    async def load(self, slug: str) -> tuple[BottleState, Ack]:
        """The bottle, made if it is new, with its files read again."""
        bottle = self.get(slug)
        if bottle is None:
            bottle = self[slug] = BottleState(slug, self._config.bottles / slug, self._config.limits)
            _make_ca(bottle)
        ack = await bottle.reload()
        log.log(
            logging.WARNING if ack.problem else logging.INFO,
            "bottle %s: version %d is live%s",
            slug,
            ack.version,
            f"; {ack.problem}" if ack.problem else "",
        )
        return bottle, ack

    def forget(self, slug: str) -> None:
        bottle = self.pop(slug, None)
        if bottle is not None:
            bottle.close()

    def gate_hosts(self) -> set[str]:
        """The hosts that the operator's own gate has to let through."""
        return {host for bottle in self.values() for host in bottle.snapshot.table.gate_hosts}

    async def maintain(self) -> None:
        """Once a second: end leases, publish that, close idle connections, save counts."""
        clock = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(1)
            now = datetime.now(UTC)
            for bottle in list(self.values()):
                bottle.counters["cut"] += bottle.flows.cut_forbidden(bottle.snapshot, now, leased_only=True)
                bottle.pool.prune(clock())
                _save_uses(bottle)
                await bottle.refresh_config_files()

    def close(self) -> None:
        """Cut everything that is still open."""
        for bottle in self.values():
            bottle.close()
            _save_uses(bottle)


def _make_ca(bottle: BottleState) -> None:
    """Before the bottle starts, because its certificate goes into it."""
    try:
        ensure_ca(bottle.directory, bottle.slug)
    except (OSError, ValueError) as error:
        log.error("bottle %s: its CA cannot be used: %s", bottle.slug, error)


def _save_uses(bottle: BottleState) -> None:
    try:
        bottle.uses.save()
    except OSError as error:
        log.warning("bottle %s: lease uses cannot be saved: %s", bottle.slug, error.strerror)
