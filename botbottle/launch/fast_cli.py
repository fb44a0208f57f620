"""`bottle run|exec|attach` without Django, when the cached plan is fresh.

Everything else is left to the management command, which reports what is wrong and caches a new plan. The
database follows by the journal.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from botbottle import backends
from botbottle.core.environment import text
from botbottle.core.plan_types import BackendError, Plan
from botbottle.launch import plan_cache, start

_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-")
_FLAGS = {"run": (), "exec": ("-t", "-T"), "attach": ()}


def try_fast_cli(arguments: Sequence[str]) -> int | None:
    """Returns the exit code; or None, with nothing done, when the management command has to do it.

    `arguments` are the words after "bottle".
    """
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
    if plan is None or (verb == "run" and not start.is_reachable(directory, supervise=plan.supervise)):
        return None
    return _do(verb, plan, command, home, tty="-t" in flags or ("-T" not in flags and start.has_terminal()))


def _do(verb: str, plan: Plan, command: tuple[str, ...], home: Path, *, tty: bool) -> int:
    backend = backends.get(plan.backend, home)
    try:
        match verb:
            case "exec":
                return start.execute(
                    backend, plan.slug, command, tty=tty, directory=Path(plan.directory), who=start.author()
                )
            case "attach":
                return start.attach(backend, plan.slug, directory=Path(plan.directory), who=start.author())
        chosen = replace(plan, command=command) if command else plan
        return start.run(backend, chosen, who=start.author(), progress=print_line)
    except BackendError as error:
        sys.stderr.write(f"bot-bottle: {error}\n")
        return 1


def _is_name(slug: str) -> bool:
    """Whether `botbottle.models.valid_slug` accepts it: names become paths."""
    return 0 < len(slug) <= 40 and _LETTERS.issuperset(slug) and slug[0] != "-" != slug[-1]


def print_line(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
