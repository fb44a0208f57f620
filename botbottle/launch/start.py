"""Run, exec and attach with their journal entries: shared by the fast command line and `supervise`.

Every start imports this.
"""

from __future__ import annotations

import _socket  # what `socket` wraps: every import here is part of every start's time
import os
import pwd
from collections.abc import Sequence
from pathlib import Path

from botbottle.backends.base import Backend, Progress
from botbottle.core.plan_types import WORKSPACE_INSIDE, BackendError, Plan
from botbottle.launch import journal, plan_cache

PROXY, AGENT = "sockets/proxy.sock", "sockets/agent.sock"


def run(backend: Backend, plan: Plan, *, who: str, progress: Progress) -> int:
    """Run a bottle in the foreground, with an entry in the journal before and after. Raises BackendError."""
    directory = Path(plan.directory)
    ensure_not_running(backend, plan.slug)
    make_workspace(plan)
    plan_cache.write_command(plan)
    journal.append(directory, journal.STARTING, who=who)
    try:
        code = backend.run(plan, progress)
    except BackendError as error:
        journal.append(directory, journal.FAILED, who=who, text=str(error))
        raise
    journal.append(directory, journal.ENDED, who=who, exit_code=code)
    return code


def ensure_not_running(backend: Backend, slug: str) -> None:
    """Raises BackendError when it runs; the journal gets no entry then."""
    if backend.life(slug).alive:
        raise BackendError(
            f"Bottle {slug!r} runs already. 'bottle exec {slug} -- …' runs one more command in it,"
            f" 'bottle stop {slug}' ends it."
        )


def execute(
    backend: Backend, slug: str, command: Sequence[str], *, tty: bool, directory: Path, who: str
) -> int:
    """Run one more command in a bottle; returns its exit code. Raises BackendError.

    The journal gets only the program's name: arguments may be secret.
    """
    if backend.life(slug).alive:
        journal.append(directory, journal.USED, who=who, text=command[0])
    return backend.exec(slug, command, tty=tty)


def attach(backend: Backend, slug: str, *, directory: Path, who: str) -> int:
    """Join this terminal to the bottle's main command. Raises BackendError."""
    if backend.life(slug).alive:
        journal.append(directory, journal.USED, who=who, text="attach")
    return backend.attach(slug)


def make_workspace(plan: Plan) -> None:
    """Create the bottle's own workspace. One that the manifest names exists, else the plan was refused."""
    for mount in plan.mounts:
        if mount.target == WORKSPACE_INSIDE and Path(mount.source).parent == Path(plan.directory):
            os.makedirs(mount.source, exist_ok=True)  # noqa: PTH103 - one system call less


def is_reachable(directory: Path, *, supervise: bool) -> bool:
    """Whether the egress process listens on the bottle's sockets, as its manifest asks."""
    try:  # by a descriptor: the path may be longer than a socket's address can be
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return False
    try:
        place = f"/proc/self/fd/{descriptor}"
        return _answers(f"{place}/{PROXY}") and _answers(f"{place}/{AGENT}") is supervise
    finally:
        os.close(descriptor)


def _answers(path: str) -> bool:
    probe = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        probe.settimeout(2)
        probe.connect(path)
    except OSError:
        return False
    finally:
        probe.close()
    return True


def author() -> str:
    """The account that runs this command. It owns the database, so its name is not checked further."""
    try:
        return f"{pwd.getpwuid(os.getuid()).pw_name} (command line)"
    except KeyError:
        return "command line"


def has_terminal() -> bool:
    return os.isatty(0) and os.isatty(1)
