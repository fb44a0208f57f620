"""A manage.py that has imported everything: each command is a fork of it, which saves a second of imports.

What a fork runs is manage.py's own `main`, with its own standard streams, and its exit is that of a process.
Run as a program it is that process; it ends with whoever holds the other end of its socket.
"""

from __future__ import annotations

import gc
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class Warm:
    """Runs commands in one environment, also several at once."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                cwd=ROOT, env=environment, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL,
            )  # fmt: skip

    def run(self, arguments: Sequence[str], *, seconds: float = 120) -> subprocess.CompletedProcess[str]:
        with ExitStack() as stack:
            ends = [stack.enter_context(os.fdopen(fd, "rb", 0)) for fd in self._begin(arguments)]
            out, err, told = _read(ends, time.monotonic() + seconds)
        number, _, code = told.partition("\n")
        if not code:
            if number:
                os.kill(int(number), signal.SIGKILL)
            raise AssertionError(f"manage.py {arguments} did not end: {out}{err}")
        return subprocess.CompletedProcess(list(arguments), int(code), out, err)

    def _begin(self, arguments: Sequence[str]) -> list[int]:
        """What it writes, what it complains of, and its number and exit code."""
        pipes = [os.pipe() for _ in range(3)]
        with Path(os.devnull).open() as nothing:
            theirs = [write for _, write in pipes]
            socket.send_fds(self._control, [json.dumps(arguments).encode()], [nothing.fileno(), *theirs])
        for write in theirs:
            os.close(write)
        return [read for read, _ in pipes]

    def close(self) -> None:
        self._control.close()
        self._process.terminate()
        self._process.wait()


def _read(ends: Sequence[object], deadline: float) -> list[str]:
    """All that is written until everybody has closed them, or for as long as it may take."""
    written = dict.fromkeys(ends, b"")
    with selectors.DefaultSelector() as selector:
        for end in ends:
            selector.register(end, selectors.EVENT_READ)
        while selector.get_map() and time.monotonic() < deadline:
            for key, _ in selector.select(1):
                more = os.read(key.fd, 65536)
                written[key.fileobj] += more
                if not more:
                    selector.unregister(key.fileobj)
    return [text.decode() for text in written.values()]


def serve(control: socket.socket) -> int:
    """Returns in the fork of each command, with manage.py's exit code, and when nobody asks any more."""
    import manage

    while True:
        request, streams, *_ = socket.recv_fds(control, 1 << 20, 4)
        if not request:
            return 0
        if os.fork() == 0:
            control.close()
            return _watch(json.loads(request), streams, manage.main)
        for stream in streams:
            os.close(stream)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _watch(arguments: list[str], streams: list[int], main: Callable[[], int]) -> int:
    """The process of a command, and one that tells how it ends."""
    *standard, told = streams
    pid = os.fork()
    if pid == 0:
        os.close(told)
        for number, stream in enumerate(standard):
            os.dup2(stream, number)
            os.close(stream)
        sys.argv = ["manage.py", *arguments]
        return main()
    for stream in standard:
        os.close(stream)
    os.write(told, b"%d\n" % pid)
    _, status = os.waitpid(pid, 0)
    os.write(told, b"%d" % os.waitstatus_to_exitcode(status))
    os._exit(0)


def import_everything() -> None:
    os.umask(0o077)  # as manage.py does
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "botbottle.settings")
    import django
    from django.conf import settings
    from django.core.management import get_commands, load_command_class
    from django.utils.module_loading import import_string

    django.setup()
    import_string(f"{settings.ROOT_URLCONF}.urlpatterns")
    for name, place in get_commands().items():
        if not str(place).startswith("django."):
            load_command_class(place, name)
    gc.freeze()  # what is shared stays shared


if __name__ == "__main__":
    sys.path[0] = str(ROOT)
    held = socket.socket(fileno=int(sys.argv[1]))
    held.set_inheritable(False)
    import_everything()
    sys.exit(serve(held))
