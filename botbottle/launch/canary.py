"""Checks, before a bottle gets a new image, that the image can carry a bottle; and records the workspace.

Both run in scratch sandboxes, with a scratch directory in the workspace's place or the workspace read-only.
Their output came from inside, so it is bounded and shown as an agent's text.
"""

from __future__ import annotations

import json
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

from botbottle import inside
from botbottle.backends.base import Progress
from botbottle.core.plan_types import WORKSPACE_INSIDE, BackendError, Mount, Plan
from botbottle.launch.scratch_sandbox import scratch_sandbox, workspace_of

_INSIDE = inside.DIRECTORY
_PROBE = (_INSIDE / "probe.py").read_text(encoding="utf-8")
_INSPECT = (_INSIDE / "workspace_state.py").read_text(encoding="utf-8")
_SNAPSHOT_INSIDE = "/snapshot"
_CANARY_SECONDS = 180.0
_SNAPSHOT_SECONDS = 120.0
_MOST_ARCHIVE = 80 * 1024**2
_MOST_NAMES = 200


class CanaryFailed(BackendError):
    """The image cannot carry a bottle; the message says what is missing."""


def check(plan: Plan, progress: Progress) -> None:
    """Boot the plan's image with the bottle's own sockets and a scratch workspace. Raises CanaryFailed.

    It runs without the bottle's secrets: the image is an agent's, and no check needs them.
    """
    has_agent = plan.agent != "none" and plan.command
    wanted = {
        "supervise": plan.supervise,
        "files": [file.path for file in plan.files],
        "program": plan.command[0] if plan.command else "",
        "agent": plan.command[0] if has_agent else "",
    }
    with scratch_sandbox(_without_secrets(plan)) as sandbox:
        scratch = Mount(str(sandbox.scratch), WORKSPACE_INSIDE, writable=True)
        mounts = [scratch if mount.target == WORKSPACE_INSIDE else mount for mount in plan.mounts]
        try:
            plan.environment()  # a variable that the host lacks is found while the old bottle still runs
            result = sandbox.run(_PROBE, json.dumps(wanted), mounts=mounts, seconds=_CANARY_SECONDS)
        except BackendError as error:
            raise CanaryFailed(f"A canary of the new image did not start: {error}") from error
    lines = [line for line in result.output.splitlines() if line.strip()]
    for line in lines:
        progress(line)
    if result.exit_code == 0:
        return
    if result.exit_code is None:
        raise CanaryFailed(f"A canary of the new image gave no answer within {_CANARY_SECONDS:.0f} s.")
    failed = [line.removeprefix("failed: ") for line in lines if line.startswith("failed: ")]
    said = "; ".join(failed or lines[-3:]) or f"it ended with code {result.exit_code}"
    raise CanaryFailed(f"A canary of the new image failed: {said[:1000]}.")


def inspect_workspace(plan: Plan, archive: Path) -> dict[str, Any]:
    """Return branch, commit and changed files; saves uncommitted ones in `archive`. Raises BackendError.

    It runs the present image without sockets and secrets: a repository's configuration can run programs.
    """
    workspace = workspace_of(plan)
    if not Path(workspace.source).is_dir():
        return {}
    bare = replace(_without_secrets(plan), files=(), supervise=False)
    with scratch_sandbox(bare) as sandbox:
        mounts = [
            replace(workspace, writable=False),
            Mount(str(sandbox.scratch), _SNAPSHOT_INSIDE, writable=True),
        ]
        packed = f"{_SNAPSHOT_INSIDE}/changes.tar.gz"
        result = sandbox.run(_INSPECT, WORKSPACE_INSIDE, packed, mounts=mounts, seconds=_SNAPSHOT_SECONDS)
        state = _state(result.output)
        if state.get("changes"):
            state["kept"] = _move_out(sandbox.scratch / "changes.tar.gz", archive)
    return state


def _without_secrets(plan: Plan) -> Plan:
    plain = {name: variable for name, variable in plan.variables.items() if not variable.secret}
    return replace(plan, variables=plain)


def _state(output: str) -> dict[str, Any]:
    """The parts of the output that we can show, with bounded sizes."""
    try:
        said = json.loads(output.strip().splitlines()[-1])
    except (ValueError, IndexError, RecursionError):
        said = None
    if not isinstance(said, dict):
        return {"unknown": "the workspace could not be inspected"}
    state: dict[str, Any] = {
        name: said[name][:300] for name in ("branch", "commit", "unknown") if isinstance(said.get(name), str)
    }
    state |= {name: said[name] for name in ("changes", "left_out") if type(said.get(name)) is int}
    if isinstance(said.get("changed"), list):
        state["changed"] = [str(name)[:300] for name in said["changed"][:_MOST_NAMES]]
    return state


def _move_out(made: Path, archive: Path) -> bool:
    """Move the archive out of the sandbox's reach without opening it."""
    try:
        found = made.lstat()
        if not stat.S_ISREG(found.st_mode) or found.st_size > _MOST_ARCHIVE:
            return False
        made.replace(archive)
        archive.chmod(0o600)
    except OSError:
        return False
    return True
