"""A stream of the Docker engine as plain pipes, for callers that wait on descriptors."""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from pathlib import Path

from docker.errors import APIError  # type: ignore[import-untyped]

from botbottle.backends.base import Pipes
from botbottle.backends.docker import terminal
from botbottle.backends.docker.engine import SECONDS, connected
from botbottle.core.plan_types import BackendError


def join(stream: terminal.Stream, execution: str, container: str) -> Pipes:
    """Start a thread that copies bytes until the engine ends the stream, then reports the exit code."""
    (source, into), (out, out_inside), (err, err_inside) = os.pipe(), os.pipe(), os.pipe()
    status, report = os.pipe()

    def copy() -> None:
        with suppress(OSError):  # the reader is gone: close the stream, so that the program sees it
            terminal.relay(stream, source=source, out=out_inside, err=err_inside)
        for fd in (source, out_inside, err_inside):
            os.close(fd)
        with suppress(OSError, BackendError):  # without an exit code, the reader sees that the bottle ended
            os.write(report, b"%d" % _exit_code(execution))
        os.close(report)

    threading.Thread(target=copy, name="docker-pipes", daemon=True).start()
    return Pipes(into, out, err, status, lambda: _pid(execution, container))


def _exit_code(execution: str) -> int:
    """The exit code. Raises BackendError. The stream can end a moment before the engine knows it."""
    deadline = time.monotonic() + SECONDS
    with connected() as client:
        while time.monotonic() < deadline:
            state = client.api.exec_inspect(execution)
            if state["ExitCode"] is not None and not state["Running"]:
                return int(state["ExitCode"])
            time.sleep(0.05)
    raise BackendError("The command left its pipes and runs on.")


def _pid(execution: str, container: str) -> int | None:
    """The process id, if the engine is on this host: checked by the process's container."""
    with suppress(BackendError, APIError, OSError), connected() as client:
        pid = int(client.api.exec_inspect(execution)["Pid"])
        if container in Path(f"/proc/{pid}/cgroup").read_text():
            return pid
    return None
