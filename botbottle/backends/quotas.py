"""What one bottle may have of what the kernel counts for a whole account, so that it never has all of it.

Every start imports this.
"""

from __future__ import annotations

import os
import re
import resource

from botbottle.core.plan_types import Limits

FILES = 4096  # descriptors of each process
PROCESSES = 4096
SHARE = 4  # a bottle gets at most this part of what its operator may have
LEAST_PROCESSES = 16
# What holds of a limit without a control group.
WEAKER = {
    "memory": "holds for each process's own data and for each of /tmp, /dev/shm and the home, while memory "
    "that processes share has no limit",
    "cpus": "is rounded up to whole processors, and a program that chooses its own gets them",
}
SHARED = (resource.RLIMIT_SIGPENDING, resource.RLIMIT_MSGQUEUE, resource.RLIMIT_MEMLOCK)


def rlimits(wanted: Limits) -> list[tuple[int, int]]:
    """What to set before the sandbox is made: its user namespace then has no more either."""
    found = [(resource.RLIMIT_NOFILE, wanted.files or FILES)]
    for kind in SHARED:
        most = resource.getrlimit(kind)[1]
        if most != resource.RLIM_INFINITY:
            found.append((kind, most // SHARE))
    return found


def processes() -> int:
    """How many a bottle may have whose manifest does not say."""
    most = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    return (
        PROCESSES if most == resource.RLIM_INFINITY else max(LEAST_PROCESSES, min(PROCESSES, most // SHARE))
    )


def processes_are_counted_within() -> bool:
    """Whether RLIMIT_NPROC, set in a user namespace, counts that one's processes alone. Never for root."""
    version = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return os.geteuid() != 0 and version is not None and (int(version[1]), int(version[2])) >= (5, 14)
