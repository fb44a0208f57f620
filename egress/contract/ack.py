"""What the data plane reports after it has read a bottle's files: JSON on its control socket. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class Ack:
    """Which version of a bottle's table is live, and what is wrong with its files or sockets."""

    bottle: str
    version: int
    loaded_at: datetime | None  # None: no table was ever loaded
    problem: str | None

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "loaded_at": self.loaded_at and self.loaded_at.isoformat()}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Ack:
        """Raises KeyError and ValueError."""
        loaded_at = plain["loaded_at"] and datetime.fromisoformat(plain["loaded_at"])
        return cls(plain["bottle"], plain["version"], loaded_at, plain["problem"])
