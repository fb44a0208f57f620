"""A plan as text, and the cached plan that saves the next start from compiling it again.

A cached plan is used only while its inputs are unchanged. Every start imports this.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from botbottle.core.plan_types import File, Limits, Mount, Plan, Variable

FORMAT = 1
PLAN_FILE, COMMAND_FILE = "run/plan.json", "run/command.json"  # in the bottle's directory

# A change in one of these folders may change what a manifest becomes.
_DECIDE_A_PLAN = ("core", "manifest", "launch", "provision", "backends")


def to_json(plan: Plan) -> str:
    """Format a plan for `from_json`."""
    return json.dumps(_plain(plan))


def from_json(text: str) -> Plan:
    """Parse a plan. Raises ValueError for anything that this version did not write."""
    return _plan(json.loads(text))


def digest_of_inputs(paths: Iterable[str]) -> str:
    """The files' stamps, and those of our own modules that compile a plan. No content is read."""
    package = Path(__file__).parents[1]
    program = [str(path) for room in _DECIDE_A_PLAN for path in sorted((package / room).rglob("*.py"))]
    return "\n".join(_stamp(path) for path in (*program, *paths))


def write(plan: Plan, inputs: list[str]) -> None:
    """Cache a plan (0600); the first input is its manifest. Raises OSError."""
    path = Path(plan.directory, PLAN_FILE)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump({"digest": digest_of_inputs(inputs), "inputs": inputs, "plan": _plain(plan)}, file)
    temporary.replace(path)


def load_fresh(directory: Path, manifest: Path) -> Plan | None:
    """The cached plan of the bottle in `directory`, if it is of this manifest and no input has changed."""
    try:
        plain = json.loads((directory / PLAN_FILE).read_bytes())
        if plain["inputs"][0] != str(manifest.absolute()):
            return None
        return _plan(plain["plan"]) if digest_of_inputs(plain["inputs"]) == plain["digest"] else None
    except (OSError, ValueError, LookupError, TypeError):
        return None


def write_command(plan: Plan) -> None:
    """Record the command, so that a replacement of the sandbox runs the same one. Raises OSError."""
    path = Path(plan.directory, COMMAND_FILE)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)  # arguments may be secret
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(plan.command, file)


def read_command(directory: Path) -> tuple[str, ...]:
    """The command of the last start; empty when there was none."""
    try:
        words = json.loads((directory / COMMAND_FILE).read_bytes())
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
    """The file's stamp. The change time is the system's own: no program can set it back."""
    try:
        found = Path(path).stat(follow_symlinks=False)
    except OSError:
        return f"{path} -"
    return f"{path} {found.st_ino} {found.st_size} {found.st_mtime_ns} {found.st_ctime_ns}"
