"""Which of several egress processes serves a bottle, and where their sockets are. Used by both planes."""

from __future__ import annotations

import json
import os
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path

from botbottle.core import environment

MOST = 64
_USUALLY_AT_MOST = 4  # each takes memory, even without bottles
DISCOVERY = "egress.json"


@lru_cache(maxsize=1024)
def owner(slug: str, processes: int) -> int:
    """The number of the process that serves this bottle: always the same, also after a restart."""
    digest = blake2b(slug.encode(), digest_size=8).digest()
    return int.from_bytes(digest) % processes


def configured(name: str) -> int:
    """The configured number of processes. Raises BadSetting."""
    usual = min(len(os.sched_getaffinity(0)), _USUALLY_AT_MOST)
    return environment.whole_number(name, usual, at_least=1, at_most=MOST)


def running(run: Path, otherwise: int) -> int:
    """The number of running processes: the proxy publishes it once it serves, and it may differ from the
    configured one.
    """
    try:
        published = json.loads((run / DISCOVERY).read_text())["processes"]
    except (OSError, ValueError, KeyError, TypeError):
        return otherwise
    return published if isinstance(published, int) and 1 <= published <= MOST else otherwise


def control_socket(run: Path, number: int) -> Path:
    return run / (f"egress-{number}.sock" if number else "egress.sock")


def stop_note(run: Path, number: int) -> Path:
    """The file that names the last run of a process that was told to stop. A run that died is not in it."""
    return run / f"egress-{number}.stopped"
