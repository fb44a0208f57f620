"""A bottle's share of what the kernel counts per account, so that one bottle cannot use up all of it.

Every start imports this.
"""

from __future__ import annotations

import os
import re
import resource

from botbottle.core.plan_types import Limits

FILES = 4096  # descriptors per process
PROCESSES = 4096
SHARE = 4  # a bottle gets one part in this many of its operator's limit
LEAST_PROCESSES = 16
# How a limit works without a control group.
WEAKER = {
    "memory": "holds for each process's own data and for each of /tmp, /dev/shm and the home, while memory "
    "that processes share has no limit",
    "cpus": "is rounded up to whole processors, and a program that chooses its own gets them",
}
SHARED = (resource.RLIMIT_SIGPENDING, resource.RLIMIT_MSGQUEUE, resource.RLIMIT_MEMLOCK)


def rlimits(wanted: Limits) -> list[tuple[int, int]]:
    """The limits to set before the sandbox is made; its user namespace then has the same ones."""
    found = [(resource.RLIMIT_NOFILE, wanted.files or FILES)]
    for kind in SHARED:
        most = resource.getrlimit(kind)[1]
        if most != resource.RLIM_INFINITY:
            found.append((kind, most // SHARE))
    return found


def processes() -> int:
    """The limit of processes for a bottle whose manifest sets none."""
    most = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    return (
        PROCESSES if most == resource.RLIM_INFINITY else max(LEAST_PROCESSES, min(PROCESSES, most // SHARE))
    )


def processes_are_counted_within() -> bool:
    """Whether RLIMIT_NPROC counts only the user namespace in which it was set. Never for root."""
    version = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return os.geteuid() != 0 and version is not None and (int(version[1]), int(version[2])) >= (5, 14)
