"""A plan as text, and the one that is kept so that the next start need not make it again.

Imports little: this is part of every start's time. A kept plan counts only while its inputs are untouched.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from botbottle.core.plan_types import File, Limits, Mount, Plan, Variable

FORMAT = 1
KEPT, COMMAND = "run/launch.json", "run/command.json"  # in the bottle's directory

# A change in one of these folders may change what a manifest becomes.
_DECIDE_A_PLAN = ("core", "manifest", "launch", "provision", "backends")


def to_json(plan: Plan) -> str:
    """Exactly what `from_json` reads back."""
    return json.dumps(_plain(plan))


def from_json(text: str) -> Plan:
    """Raises ValueError for what this version did not write."""
    return _plan(json.loads(text))


def digest_of_inputs(paths: Iterable[str]) -> str:
    """What the files are by their stamps, not their content, which need not be read; and who reads them."""
    ours = Path(__file__).parents[1]
    program = [str(entry) for room in _DECIDE_A_PLAN for entry in sorted((ours / room).rglob("*.py"))]
    return "\n".join(_stamp(path) for path in (*program, *paths))


def write(plan: Plan, inputs: list[str]) -> None:
    """Keep a plan (0600); the first input is its manifest. Raises OSError."""
    path = Path(plan.directory, KEPT)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump({"digest": digest_of_inputs(inputs), "inputs": inputs, "plan": _plain(plan)}, file)
    temporary.replace(path)


def load_fresh(directory: Path, manifest: Path) -> Plan | None:
    """The kept plan of the bottle in `directory`, when it is of this manifest and nothing changed since."""
    try:
        plain = json.loads((directory / KEPT).read_bytes())
        if plain["inputs"][0] != str(manifest.absolute()):
            return None
        return _plan(plain["plan"]) if digest_of_inputs(plain["inputs"]) == plain["digest"] else None
    except (OSError, ValueError, LookupError, TypeError):
        return None


def remember_command(plan: Plan) -> None:
    """What it was started with, so that a replacement goes on with the same. Raises OSError."""
    path = Path(plan.directory, COMMAND)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)  # arguments may be secret
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(plan.command, file)


def command_of(directory: Path) -> tuple[str, ...]:
    """Empty when it was started with none, or never."""
    try:
        words = json.loads((directory / COMMAND).read_bytes())
        return tuple(str(word) for word in words)
    except (OSError, ValueError, TypeError):
        return ()


def _plain(plan: Plan) -> dict[str, Any]:
    plain: dict[str, Any] = {name: getattr(plan, name) for name in Plan.__match_args__}
    plain["variables"] = {
        name: [variable.value, variable.from_env, variable.from_file]
        for name, variable in plan.variables.items()
    }
    plain["files"] = [[file.path, file.content, file.mode] for file in plan.files]
    plain["mounts"] = [[mount.source, mount.target, mount.writable] for mount in plan.mounts]
    plain["limits"] = [getattr(plan.limits, name) for name in Limits.__match_args__]
    return {"format": FORMAT, **plain}


def _plan(plain: Any) -> Plan:
    try:
        if plain["format"] != FORMAT:
            raise ValueError("another format")
        parts = {name: plain[name] for name in Plan.__match_args__}
        parts["command"] = tuple(parts["command"])
        parts["variables"] = {name: Variable(*entry) for name, entry in parts["variables"].items()}
        parts["files"] = tuple(File(*entry) for entry in parts["files"])
        parts["mounts"] = tuple(Mount(*entry) for entry in parts["mounts"])
        parts["limits"] = Limits(*parts["limits"])
        return Plan(**parts)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise ValueError(f"this is not a plan of format {FORMAT}: {error!r}") from error


def _stamp(path: str) -> str:
    """The change time is the system's own: nobody sets it back."""
    try:
        found = Path(path).stat(follow_symlinks=False)
    except OSError:
        return f"{path} -"
    return f"{path} {found.st_ino} {found.st_size} {found.st_mtime_ns} {found.st_ctime_ns}"
