"""Supervises child processes: starts them, restarts one that dies, stops all of them together."""

from __future__ import annotations

import ctypes
import http.client
import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from botbottle.core.environment import BadSetting

log = logging.getLogger(__name__)
READY_SECONDS = 60.0
STOP_SECONDS = 6.0
POLL_SECONDS = 0.1
REFUSED = 2  # the exit code of BadSetting
SUPERVISED = "BOTTLE_SUPERVISED"
PR_SET_PDEATHSIG = 1
STEADY_SECONDS = 30.0  # a child that lived this long earns a fresh restart delay


@dataclass
class Child:
    """A process and how to start it again."""

    name: str
    command: list[str]
    environment: dict[str, str]
    descriptors: list[int]
    serves: Callable[[], bool]
    stop_seconds: float = STOP_SECONDS
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    failures: int = 0
    restart_at: float = field(default=0.0, repr=False)

    def start(self) -> None:
        self.started_at = time.monotonic()
        self.process = subprocess.Popen(  # noqa: S603 - our own interpreter and script
            self.command,
            env={**os.environ, **self.environment, SUPERVISED: str(os.getpid())},
            pass_fds=self.descriptors,
            start_new_session=True,  # Ctrl-C reaches only us, and we stop the children in order
        )

    @property
    def refused(self) -> bool:
        """Whether it ended because of a setting that only the operator can correct."""
        return self.process is not None and self.process.poll() == REFUSED

    def restart_if_ended(self) -> None:
        """Restart it after a death: at once the first time, then more and more slowly, up to ten seconds."""
        if self.process is None or self.process.poll() is None:
            return
        now = time.monotonic()
        if self.restart_at == 0.0:
            if now - self.started_at > STEADY_SECONDS:
                self.failures = 0
            delay = min(10.0, 0.5 * self.failures)
            self.failures += 1
            self.restart_at = now + delay
            self._log_end(self.process.returncode, delay)
        if now >= self.restart_at:
            self.restart_at = 0.0
            self.start()

    def _log_end(self, code: int, delay: float) -> None:
        """Log the end. An operator may stop a child to get a fresh one: that is not an error."""
        if code in (0, -signal.SIGTERM):
            log.info("%s was stopped; starting it again in %.1f s", self.name, delay)
        else:
            log.error("%s ended with code %s; restarting in %.1f s", self.name, code, delay)


def die_with_supervisor(how: signal.Signals = signal.SIGTERM) -> None:
    """End this child when its supervisor ends: else it would keep its sockets and never be restarted."""
    supervisor = os.environ.pop(SUPERVISED, "")
    if not supervisor:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, how, 0, 0, 0) != 0:
        raise BadSetting("This system cannot tie a process to its supervisor. Start it by itself.")
    if str(os.getppid()) != supervisor:
        raise SystemExit("bot-bottle: the supervisor is gone already.")


def run_until_stopped(
    children: list[Child], *, ready: Callable[[], None], stopping: Callable[[], None] = lambda: None
) -> None:
    """Run the children until SIGINT or SIGTERM.

    `ready` is called once all of them serve, `stopping` at the end, before any of them is stopped.
    """
    received_signals: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda received, _frame: received_signals.append(received))
    for child in children:
        child.start()
    try:
        deadline = time.monotonic() + READY_SECONDS
        while not received_signals and not all(child.serves() for child in children):
            if any(child.refused for child in children):
                raise SystemExit(REFUSED)  # it has printed why
            if time.monotonic() > deadline:
                raise BadSetting("bot-bottle did not come up within a minute. The lines above say why.")
            _restart_ended(children)
        if not received_signals:
            ready()
        while not received_signals:
            _restart_ended(children)
    finally:
        stopping()
        _stop(children)


def _restart_ended(children: list[Child]) -> None:
    for child in children:
        child.restart_if_ended()
    time.sleep(POLL_SECONDS)


def answers_health(host: str, port: int) -> bool:
    connection = http.client.HTTPConnection(host, port, timeout=2)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def _stop(children: list[Child]) -> None:
    running = [(child, child.process) for child in children if child.process and child.process.poll() is None]
    for _, process in running:
        process.terminate()
    begun = time.monotonic()
    for child, process in running:
        try:
            process.wait(max(0.0, begun + child.stop_seconds - time.monotonic()))
        except subprocess.TimeoutExpired:
            log.warning("%s did not end within %g s, and is killed", child.name, child.stop_seconds)
            process.kill()
            process.wait()
