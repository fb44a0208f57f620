"""The interface of a backend, which turns a plan into a sandbox and reports its real state. No Django.

A bottle has no network: it gets a directory with two Unix sockets, and a bridge inside.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from botbottle.core.plan_types import BackendError, Plan

STOP_SECONDS = 10.0

Progress = Callable[[str], None]  # takes one line of text for the person who waits


class Unavailable(BackendError):
    """The backend cannot run here; the message says why and how to install it."""


class NotRunning(BackendError):
    """The bottle is not running."""


@dataclass(frozen=True, slots=True)
class Life:
    """The state of a bottle as the system reports it."""

    alive: bool
    started_at: float | None = None  # by the wall clock
    exit_code: int | None = None  # of the last run, when it is known
    pid: int | None = None


@dataclass(frozen=True, slots=True)
class Pipes:
    """Our ends of the pipes of a program in a bottle; the caller closes them. Output is untrusted."""

    stdin: int
    stdout: int
    stderr: int
    status: int  # yields the exit code in digits; nothing if the bottle ended
    locate: Callable[[], int | None] = lambda: None  # the program's process id on this host, if known

    def close(self) -> None:
        """Close our ends; the program sees the end of its input."""
        for fd in (self.stdin, self.stdout, self.stderr, self.status):
            os.close(fd)


def one_line(printed: bytes) -> str:
    """Turn text from inside a bottle into one line that is harmless on a terminal."""
    text = "".join(letter if letter.isprintable() else " " for letter in printed.decode("utf-8", "replace"))
    return " ".join(text.split()) or "it printed nothing."


class Backend(Protocol):
    """One class per kind of sandbox, one instance per BOTTLE_HOME. Failures are BackendErrors."""

    name: str

    def available(self) -> None:
        """Raises Unavailable with the reason and the install hint."""

    def read(self, image: str, path: str) -> str | None:
        """Return a text file of the image, or None, so that an agent's configuration can be merged."""

    def build(self, plan: Plan, progress: Progress) -> str:
        """Return the name of the plan's image for `read`; builds it first if its Dockerfile is new."""

    def interpreter(self, plan: Plan) -> str:
        """Return the command of the Python in the plan's sandbox. Raises BackendError."""

    def start(self, plan: Plan, progress: Progress) -> None:
        """Start a bottle in the background and log its output. Returns once its first program runs."""

    def run(self, plan: Plan, progress: Progress) -> int:
        """Run a bottle on this terminal; returns the exit code."""

    def exec(self, slug: str, command: Sequence[str], *, tty: bool) -> int:
        """Run one more command in a running bottle, on this terminal. Raises NotRunning."""

    def pipe(self, slug: str, program: str, *arguments: str) -> Pipes:
        """Run a Python program's text in the bottle, with its interpreter and variables, on pipes.

        Returns at once. Raises NotRunning.
        """

    def attach(self, slug: str) -> int:
        """Join this terminal to the bottle's main command; Ctrl-P Ctrl-Q detaches. Raises NotRunning."""

    def logs(self, slug: str, *, follow: bool) -> Iterator[bytes]:
        """Yield what the main command printed, also after its end."""

    def copy_in(self, slug: str, source: Path, target: str) -> None:
        """Copy a file or directory of the host into a running bottle, as the agent. Raises NotRunning."""

    def stop(self, slug: str, *, seconds: float = STOP_SECONDS) -> None:
        """Ask the bottle to end, wait `seconds`, then kill it. Does nothing if it is stopped."""

    def life(self, slug: str) -> Life: ...

    def orphans(self, known: Iterable[str]) -> list[str]:
        """Slugs of sandboxes of this home that run, or left something behind, and are not in `known`."""

    def tidy(self, slug: str) -> None:
        """Remove what a killed process left. Called often; never disturbs a start or a running bottle."""

    def remove(self, slug: str) -> None:
        """Stop the bottle and remove everything the backend stores for it."""

    def rebuild(self, slug: str, dockerfile: str, progress: Progress) -> str:
        """Build an image from a Dockerfile's text; returns its name. A failure carries the end of the log."""
