"""Which of several egress processes serves a bottle, and where each is found: both planes ask here."""

from __future__ import annotations

import json
import os
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path

from botbottle.core import environment

MOST = 64
_USUALLY_AT_MOST = 4  # each takes memory, whether it has bottles or not
DISCOVERY = "egress.json"


@lru_cache(maxsize=1024)
def owner(slug: str, processes: int) -> int:
    """The number of the one process that serves this bottle: the same whoever asks, and after a restart."""
    digest = blake2b(slug.encode(), digest_size=8).digest()
    return int.from_bytes(digest) % processes


def configured(name: str) -> int:
    """How many processes there are to be. Raises BadSetting."""
    usual = min(len(os.sched_getaffinity(0)), _USUALLY_AT_MOST)
    return environment.whole_number(name, usual, at_least=1, at_most=MOST)


def running(run: Path, otherwise: int) -> int:
    """How many there are: the proxy says so once it serves, and may have been given another number."""
    try:
        told = json.loads((run / DISCOVERY).read_text())["processes"]
    except (OSError, ValueError, KeyError, TypeError):
        return otherwise
    return told if isinstance(told, int) and 1 <= told <= MOST else otherwise


def control_socket(run: Path, number: int) -> Path:
    return run / (f"egress-{number}.sock" if number else "egress.sock")


def stop_note(run: Path, number: int) -> Path:
    """Names the last run of the process that was told to stop. A run that died is not in it."""
    return run / f"egress-{number}.stopped"
