"""One JSON line per request on stderr. Agents choose methods and names: they are cut and escaped."""

from __future__ import annotations

import json
import logging
import time
from dataclasses import dataclass, field

log = logging.getLogger("supervise.access")
MAX_TEXT = 100


@dataclass
class AccessEntry:
    method: str
    path: str
    started: float = field(default_factory=time.monotonic)
    bottle: str | None = None
    mcp: str | None = None
    tool: str | None = None

    def write(self, status: int, *, gone: bool = False) -> None:
        line = {
            "method": self.method,
            "path": self.path[:MAX_TEXT],
            "bottle": self.bottle,
            "mcp": self.mcp and self.mcp[:MAX_TEXT],
            "tool": self.tool and self.tool[:MAX_TEXT],
            "status": status,
            "ms": round((time.monotonic() - self.started) * 1000, 1),
        }
        if gone:
            line["client"] = "gone"
        log.info(json.dumps({key: value for key, value in line.items() if value is not None}))
