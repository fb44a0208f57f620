"""The shortest way into a bottle: `bottle run|exec|attach` without Django, when a kept plan is fresh.

Whatever is not plain and in order goes the long way, which says what is wrong and keeps a new plan. The
database follows by the journal.
"""

from __future__ import annotations

import _socket  # what `socket` wraps: every import here is part of every start's time
import os
import pwd
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from botbottle.backends.base import Backend, Progress
from botbottle.core.environment import text
from botbottle.core.plan_types import WORKSPACE_INSIDE, BackendError, Plan
from botbottle.launch import journal, plan_cache

PROXY, AGENT = "sockets/proxy.sock", "sockets/agent.sock"
_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-")
_FLAGS = {"run": (), "exec": ("-t", "-T"), "attach": ()}


def try_fast_cli(arguments: Sequence[str]) -> int | None:
    """`arguments` follow "bottle". The exit code, or None for the long way. Nothing was done then."""
    verb, *rest = arguments
    flags = []
    while rest and rest[0] in _FLAGS[verb]:
        flags.append(rest.pop(0))
    if not rest or not _is_name(rest[0]) or (rest[1:] and rest[1] != "--"):
        return None
    slug, command = rest[0], tuple(rest[2:])
    home = Path(text("BOTTLE_HOME", "~/.bot-bottle")).expanduser()
    manifest = Path(text("BOTTLE_MANIFESTS") or home / "bottles").expanduser() / f"{slug}.yaml"
    directory = Path(os.path.realpath(home)) / "bottles" / slug
    if (verb == "exec" and not command) or (verb == "attach" and command):
        return None
    plan = plan_cache.load_fresh(directory, manifest)
    if plan is None or (verb == "run" and not reachable(directory, supervise=plan.supervise)):
        return None
    return _do(verb, plan, command, home, tty="-t" in flags or ("-T" not in flags and on_a_terminal()))


def _do(verb: str, plan: Plan, command: tuple[str, ...], home: Path, *, tty: bool) -> int:
    from botbottle.backends.local.backend import LocalBackend  # noqa: PLC0415 - nobody else should pay for it

    backend = LocalBackend(home)
    try:
        match verb:
            case "exec":
                return execute(
                    backend, plan.slug, command, tty=tty, directory=Path(plan.directory), who=author()
                )
            case "attach":
                return attach(backend, plan.slug, directory=Path(plan.directory), who=author())
        chosen = replace(plan, command=command) if command else plan
        return run(backend, chosen, who=author(), progress=say)
    except BackendError as error:
        sys.stderr.write(f"bot-bottle: {error}\n")
        return 1


def run(backend: Backend, plan: Plan, *, who: str, progress: Progress) -> int:
    """In the foreground, told to the journal. Raises BackendError."""
    directory = Path(plan.directory)
    ensure_not_running(backend, plan.slug)
    make_workspace(plan)
    plan_cache.remember_command(plan)
    journal.append(directory, journal.STARTING, who=who)
    try:
        code = backend.run(plan, progress)
    except BackendError as error:
        journal.append(directory, journal.FAILED, who=who, text=str(error))
        raise
    journal.append(directory, journal.ENDED, who=who, exit_code=code)
    return code


def ensure_not_running(backend: Backend, slug: str) -> None:
    """Raises BackendError when it runs: nothing is told to the journal then."""
    if backend.life(slug).alive:
        raise BackendError(
            f"Bottle {slug!r} runs already. 'bottle exec {slug} -- …' runs one more command in it,"
            f" 'bottle stop {slug}' ends it."
        )


def execute(
    backend: Backend, slug: str, command: Sequence[str], *, tty: bool, directory: Path, who: str
) -> int:
    """Of the command only the program is told: arguments may be secret. Raises BackendError."""
    if backend.life(slug).alive:
        journal.append(directory, journal.USED, who=who, text=command[0])
    return backend.exec(slug, command, tty=tty)


def attach(backend: Backend, slug: str, *, directory: Path, who: str) -> int:
    """Raises BackendError."""
    if backend.life(slug).alive:
        journal.append(directory, journal.USED, who=who, text="attach")
    return backend.attach(slug)


def make_workspace(plan: Plan) -> None:
    """The bottle's own one. A workspace that the manifest names is there, or the plan was refused."""
    for mount in plan.mounts:
        if mount.target == WORKSPACE_INSIDE and Path(mount.source).parent == Path(plan.directory):
            os.makedirs(mount.source, exist_ok=True)  # noqa: PTH103 - one system call less


def reachable(directory: Path, *, supervise: bool) -> bool:
    """Whether the egress process serves this bottle as its manifest has it, however long the path is."""
    try:
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


def _is_name(slug: str) -> bool:
    """As `botbottle.models.valid_slug` has it: names become paths."""
    return 0 < len(slug) <= 40 and _LETTERS.issuperset(slug) and slug[0] != "-" != slug[-1]


def author() -> str:
    """Whoever can run this owns the database; the record says which account that was."""
    try:
        return f"{pwd.getpwuid(os.getuid()).pw_name} (command line)"
    except KeyError:
        return "command line"


def on_a_terminal() -> bool:
    return os.isatty(0) and os.isatty(1)


def say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
