"""Takes all that it gets of what the kernel counts for a whole account, and keeps it: run in a bottle.

Prints how much that was, as JSON, when nothing is left. Standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import resource
import select
import signal
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

AT_ONCE = 2


def main() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    watches, is_full = 0, False
    while not is_full:
        counts = [told(end) for end in [in_a_child(eat_watches) for _ in range(AT_ONCE)]]
        watches += sum(int(count.split()[0]) for count in counts)
        is_full = any(count.endswith(b"full") for count in counts)
    descriptors = int(told(in_a_child(eat_descriptors)))
    libc = ctypes.CDLL(None)
    instances = [number for number in iter(libc.inotify_init, -1)]  # noqa: C416 - they stay open
    found = {"watches": watches, "descriptors": descriptors, "inotify": len(instances)}
    print(json.dumps(found | {"processes": eat_processes()}), flush=True)  # noqa: T201
    signal.pause()


def in_a_child(eat: Callable[[int], None]) -> int:
    """Where it says how much it got."""
    read, write = os.pipe()
    if os.fork() == 0:
        os.close(read)
        eat(write)
    os.close(write)
    return read


def told(end: int) -> bytes:
    said = os.read(end, 32)
    os.close(end)
    return said


def eat_watches(tell: int) -> None:
    """One file under many numbers, watched by many instances. Whatever becomes free later is taken too."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    file, _ = os.pipe()
    numbers = [os.dup(file) for _ in range(most // 2)]
    count, instances = 0, []
    try:
        while True:
            instances.append(instance := select.epoll())
            for number in numbers:
                instance.register(number)
                count += 1
    except OSError as error:
        os.write(tell, b"%d %s" % (count, b"full" if error.errno == errno.ENOSPC else b"more"))
    while True:
        with contextlib.suppress(OSError):
            for number in numbers:
                with contextlib.suppress(FileExistsError):
                    instances[-1].register(number)
        time.sleep(0.0005)


def eat_descriptors(tell: int) -> None:
    count = 0
    try:
        while True:
            os.dup(0)
            count += 1
    except OSError:
        os.write(tell, b"%d" % count)
        signal.pause()


def eat_processes() -> int:
    count = 0
    try:
        while True:
            if os.fork() == 0:
                signal.pause()
            count += 1
    except OSError:
        return count


if __name__ == "__main__":
    main()
