"""What a backend is: it turns a plan into a running sandbox and tells the truth about it. No Django here.

A bottle has no network at all: it gets a directory with two Unix sockets, and a bridge inside of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from botbottle.core.plan_types import BackendError, Plan

STOP_SECONDS = 10.0

Progress = Callable[[str], None]  # one plain line for whoever waits


class Unavailable(BackendError):
    """This backend cannot run here; the message says why and how to install it."""


class NotRunning(BackendError):
    """The bottle is not running."""


@dataclass(frozen=True, slots=True)
class Life:
    """What the system says about a bottle."""

    alive: bool
    started_at: float | None = None  # by the wall clock
    exit_code: int | None = None  # of the last run, when it is known
    pid: int | None = None


@dataclass(frozen=True, slots=True)
class Pipes:
    """Our ends of a program in a bottle; whoever gets them closes them. What comes out is untrusted."""

    stdin: int
    stdout: int
    stderr: int
    status: int  # gives the exit code in digits, then ends; only ends when the bottle did
    locate: Callable[[], int | None] = lambda: None  # the running program's number on this host, where known

    def close(self) -> None:
        """Nobody listens any more: the program sees its input end."""
        for fd in (self.stdin, self.stdout, self.stderr, self.status):
            os.close(fd)


def one_line(printed: bytes) -> str:
    """Text from inside, harmless on a terminal."""
    text = "".join(letter if letter.isprintable() else " " for letter in printed.decode("utf-8", "replace"))
    return " ".join(text.split()) or "it printed nothing."


class Backend(Protocol):
    """One per kind of sandbox; made for one BOTTLE_HOME. What goes wrong is a BackendError to act on."""

    name: str

    def available(self) -> None:
        """Raises Unavailable with the reason and the install hint."""

    def read(self, image: str, path: str) -> str | None:
        """A text file of the image, or None: so that an agent's configuration is merged, not overwritten."""

    def build(self, plan: Plan, progress: Progress) -> str:
        """The plan's image by a name for `read`, built first when it comes from a Dockerfile that is new."""

    def interpreter(self, plan: Plan) -> str:
        """The Python that the plan's sandbox has, as a command in it. Raises BackendError."""

    def start(self, plan: Plan, progress: Progress) -> None:
        """In the background, with its output kept; returns once the bottle's first program runs."""

    def run(self, plan: Plan, progress: Progress) -> int:
        """In the foreground on this terminal; returns the exit code."""

    def exec(self, slug: str, command: Sequence[str], *, tty: bool) -> int:
        """One more command in a running bottle, on this terminal. Raises NotRunning."""

    def pipe(self, slug: str, program: str, *arguments: str) -> Pipes:
        """A Python program's text, run by the bottle's own interpreter with the bottle's variables, on pipes.

        Returns at once. Raises NotRunning.
        """

    def attach(self, slug: str) -> int:
        """This terminal on the bottle's main command; Ctrl-P Ctrl-Q leaves it running. Raises NotRunning."""

    def logs(self, slug: str, *, follow: bool) -> Iterator[bytes]:
        """What the main command printed, also after its end."""

    def copy_in(self, slug: str, source: Path, target: str) -> None:
        """A file or directory of the host into a running bottle, as the agent's user. Raises NotRunning."""

    def stop(self, slug: str, *, seconds: float = STOP_SECONDS) -> None:
        """Ask, wait so long, then kill. Gone when it returns; nothing to do is fine."""

    def life(self, slug: str) -> Life: ...

    def orphans(self, known: Iterable[str]) -> list[str]:
        """Slugs of sandboxes of this home that run, or left something behind, and that nobody knows."""

    def tidy(self, slug: str) -> None:
        """Put away what a killed process has left behind. Asked often; disturbs no start and no bottle."""

    def remove(self, slug: str) -> None:
        """Stop it and remove everything the backend keeps of it."""

    def rebuild(self, slug: str, dockerfile: str, progress: Progress) -> str:
        """Build an image from a Dockerfile's text; returns its name. A failure carries the log's end."""
