"""Runs one program in a sandbox like a bottle's and removes the sandbox. The bottle is not touched.

Trust boundary: the program may be an agent's, so its output is bounded and proves nothing.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from botbottle import backends
from botbottle.backends.accounts import bottle_user
from botbottle.backends.base import Backend
from botbottle.core.plan_types import WORKSPACE_INSIDE, BackendError, Mount, Plan

DIRECTORY = "canary"  # in the bottle's directory: a separate home, so that it is never taken for the bottle
_MOST_OUTPUT = 1 << 20
_POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Result:
    exit_code: int | None  # None: it ran out of time
    output: str


class ScratchSandbox:
    """A sandbox for one program; create it with `scratch_sandbox`, which also removes it."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.home = Path(plan.directory) / DIRECTORY
        self.scratch = self.home / "scratch"  # writable for the program
        self.backend: Backend = backends.get(plan.backend, self.home)

    def run(self, program: str, *arguments: str, mounts: Iterable[Mount], seconds: float) -> Result:
        """Run a Python program in it. Raises BackendError when it does not even start."""
        plan = self._plan
        directory = self.home / "bottles" / plan.slug
        made = replace(
            plan,
            directory=str(directory),
            command=(self.backend.interpreter(plan), "-I", "-S", "-c", program, *arguments),
            mounts=tuple(mounts),
            workdir="/",
        )
        self.backend.start(made, _ignore)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            life = self.backend.life(plan.slug)
            if not life.alive:
                return Result(life.exit_code, self._output())
            time.sleep(_POLL_SECONDS)
        self.backend.stop(plan.slug, seconds=0)
        return Result(None, self._output())

    def _output(self) -> str:
        received = b""
        for chunk in self.backend.logs(self._plan.slug, follow=False):
            received += chunk
            if len(received) > _MOST_OUTPUT:
                break
        return received[:_MOST_OUTPUT].decode(errors="replace").replace("\r\n", "\n")


@contextmanager
def scratch_sandbox(plan: Plan) -> Iterator[ScratchSandbox]:
    clear(plan.backend, Path(plan.directory), plan.slug)
    made = ScratchSandbox(plan)
    made.scratch.mkdir(mode=0o700, parents=True)
    _set_owners(made, plan)
    try:
        yield made
    finally:
        clear(plan.backend, Path(plan.directory), plan.slug)


def clear(backend: str, directory: Path, slug: str) -> None:
    """Remove what is left of one, perhaps by a killed process. Does nothing if there is none."""
    home = directory / DIRECTORY
    if home.is_dir():
        with suppress(BackendError):
            backends.get(backend, home).remove(slug)
        shutil.rmtree(home, ignore_errors=True)


def workspace_of(plan: Plan) -> Mount:
    return next(mount for mount in plan.mounts if mount.target == WORKSPACE_INSIDE)


def _set_owners(made: ScratchSandbox, plan: Plan) -> None:
    """Give the directories to the owners that a bottle's have. Only root can, and has to."""
    if os.geteuid() != 0:
        return
    owner = Path(plan.directory).parent.parent.stat()
    os.chown(made.home, owner.st_uid, owner.st_gid)
    if not backends.traits(plan.backend).runs_as_operator:
        user = bottle_user(made.home)
        os.chown(made.scratch, user.uid, user.gid)


def _ignore(_line: str) -> None:
    """Ignore progress: it does not interest the caller."""
