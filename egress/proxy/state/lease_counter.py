"""How often leased routes were used, kept in a file so that a restart does not reset it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from botbottle.core.files import write_atomically
from egress.policy.routes import Route


class LeaseCounter:
    """Uses are counted from a lease's grant: a renewed lease has another key and starts at nothing."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._counts = _read(path)
        self._changed = False

    def take(self, route: Route) -> bool:
        """Count one use of this route. False when its lease has none left."""
        lease = route.lease
        if lease is None or lease.max_uses is None:
            return True
        key = _key(route)
        used = self._counts.get(key, 0)
        if used >= lease.max_uses:
            return False
        self._counts[key] = used + 1
        self._changed = True
        with suppress(OSError):  # `Bottles.maintain` tries again, and logs
            self.save()
        return True

    def left(self, route: Route) -> int | None:
        if route.lease is None or route.lease.max_uses is None:
            return None
        return max(0, route.lease.max_uses - self._counts.get(_key(route), 0))

    def forget_others(self, routes: Iterable[Route]) -> None:
        known = {_key(route) for route in routes}
        for key in set(self._counts) - known:
            del self._counts[key]
            self._changed = True

    def save(self) -> None:
        """Raises OSError. Not synced to the disk: this only has to survive a killed process."""
        if self._changed:
            write_atomically(self._path, json.dumps(self._counts), synced=False, also_when_full=True)
            self._changed = False


def _key(route: Route) -> str:
    granted = route.lease.granted_at if route.lease else None
    return f"{route.host} {granted.isoformat() if granted else ''}"


def _read(path: Path) -> dict[str, int]:
    """A file that cannot be read counts as no uses: the lease's end in time still holds."""
    try:
        counts = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(counts, dict):
        return {}
    return {key: count for key, count in counts.items() if type(count) is int}
