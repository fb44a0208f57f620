"""The limits of a managed server: on all its processes together where control groups are available.

Else on each of its processes. `words` says which of the two is in force.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from botbottle.backends.local import cgroups
from botbottle.core.plan_types import Limits

NAMES = ("memory", "pids", "cpus")


class ServerLimits:
    def __init__(self, group: str, wanted: Limits) -> None:
        self._group, self._wanted = group, wanted
        self._placed = cgroups.Placement()

    def enter(self, locate: Callable[[], int | None]) -> None:
        """Apply the limits before the server starts anything; `locate` finds its process."""
        pid = locate() if self._wanted != Limits() else None
        self._placed = cgroups.Placement()
        if pid is not None:
            try:
                self._placed = cgroups.place_within(pid, self._group, self._wanted)
            except OSError:  # it has just ended
                return

    def leave(self) -> None:
        """Kill what is left of the server, whatever it has become, and remove the groups."""
        cgroups.kill(self._placed.cgroups)
        cgroups.remove(list(self._placed.cgroups))
        self._placed = cgroups.Placement()

    @property
    def _together(self) -> list[str]:
        return [name for name in self._named if self._placed.cgroups and name not in self._placed.weaker]

    @property
    def _named(self) -> list[str]:
        return [name for name in NAMES if getattr(self._wanted, name) is not None]

    @property
    def of_each_process(self) -> Limits:
        """The limits that no group enforces."""
        return replace(self._wanted, **dict.fromkeys(self._together))

    @property
    def words(self) -> str:
        together, single = self._together, [name for name in self._named if name not in self._together]
        parts = [(together, "all its processes together"), (single, "each process")]
        return ", ".join(f"{', '.join(names)} ({whom})" for names, whom in parts if names)
