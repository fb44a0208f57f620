"""The bottle's secret variables, checked often: they have to be known before they can leave.

Trust boundary: the file is the host's own. While it cannot be read, what to search for is unknown, and
nothing leaves on routes that are searched.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path

from egress.contract.secret_variables import FILE, KNOWN_AFTER_SECONDS, from_bytes, searched_for

log = logging.getLogger("egress")
_UNREADABLE = (0, 0, 0)


@dataclass(frozen=True, slots=True)
class SecretVariables:
    secrets: frozenset[str] = frozenset()
    problem: str = ""


_NOTHING = SecretVariables()


class SecretVariablesFile:
    def __init__(self, directory: Path) -> None:
        self._path = str(directory / "run" / FILE)
        self._stamp: tuple[int, int, int] | None = None
        self._known = _NOTHING
        self._until = 0.0

    def current(self, now: float) -> SecretVariables:
        """The same object for as long as the file is the same. `now` is by the monotonic clock."""
        if now >= self._until:
            self._until = now + KNOWN_AFTER_SECONDS
            stamp = self._stamped()
            if stamp != self._stamp:
                self._stamp, self._known = stamp, self._read()
        return self._known

    def _stamped(self) -> tuple[int, int, int] | None:
        try:
            found = os.stat(self._path, follow_symlinks=False)  # noqa: PTH116 - asked many times a second
        except FileNotFoundError:
            return None
        except OSError:
            return _UNREADABLE
        return found.st_ino, found.st_ctime_ns, found.st_size

    def _read(self) -> SecretVariables:
        try:
            return SecretVariables(searched_for(from_bytes(Path(self._path).read_bytes())))
        except FileNotFoundError:
            return _NOTHING
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not what a start writes"
            problem = f"The secrets that were handed to the bottle cannot be read from run/{FILE}: {why}."
            log.error("%s Nothing leaves on routes that are searched.", problem)
            return SecretVariables(problem=problem)
