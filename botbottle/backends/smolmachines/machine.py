"""What a bottle's virtual machine is made of: the arguments of `smolvm` and of the programs inside.

Trust boundary: never a network, never a published port, never an image that would be pulled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from botbottle.backends.accounts import User
from botbottle.core.plan_types import (
    HOME_INSIDE,
    INIT_INSIDE,
    PROGRAMS_INSIDE,
    RUN_INSIDE,
    SOCKETS_INSIDE,
    TRUST_INSIDE,
    USER_INSIDE,
    BackendError,
    File,
    Mount,
    Plan,
)

PYTHON = ("python3", "-I", "-S")
FILES, VARIABLES = f"{RUN_INSIDE}/files", f"{RUN_INSIDE}/variables.json"
LOG, PID = f"{RUN_INSIDE}/log", f"{RUN_INSIDE}/main.pid"
_TRUST_COPIES = (
    ("bundle.pem", "/etc/ssl/certs/ca-certificates.crt"),
    ("bundle.pem", "/etc/pki/tls/certs/ca-bundle.crt"),
    ("bundle.pem", "/etc/ssl/cert.pem"),
    ("ca.pem", "/usr/local/share/ca-certificates/bot-bottle.crt"),
)
BUILDS_NOTHING = (
    "smolvm boots images and builds none. Build it elsewhere (docker build -t x . && docker save x -o "
    "image.tar) and name the archive, or a directory, as the manifest's image."
)


def init_command(plan: Plan) -> list[str]:
    options = ["--env-file", VARIABLES, *([] if plan.supervise else ["--no-supervise"])]
    return [INIT_INSIDE, *options, "--", *plan.command]


def with_variables(command: Sequence[str]) -> list[str]:
    return [*PYTHON, INIT_INSIDE, "exec", "--env-file", VARIABLES, "--", *command]


def is_in_home(file: File) -> bool:
    return file.path.startswith(f"{HOME_INSIDE}/")


def create_arguments(plan: Plan, labels: dict[str, str]) -> list[str]:
    """The arguments of `machine create`: never --net, a published port, or a name to pull."""
    if plan.dockerfile:
        raise BackendError(BUILDS_NOTHING)
    image = Path(plan.image)
    if not plan.image.startswith("/") or not image.exists():
        raise BackendError(f"The image {plan.image!r} is not on this host. {BUILDS_NOTHING}")
    arguments = ["--image", plan.image, "-w", plan.workdir]
    for name, value in labels.items():
        arguments += ["--label", f"{name}={value}"]
    if plan.limits.cpus is not None:
        arguments += ["--cpus", str(max(1, math.ceil(plan.limits.cpus)))]
    if plan.limits.memory is not None:
        arguments += ["--mem", str(max(1, plan.limits.memory >> 20))]
    for mount in plan.mounts:
        arguments += _mounted(mount, plan)
    return arguments


def _mounted(mount: Mount, plan: Plan) -> list[str]:
    if mount.target == SOCKETS_INSIDE:
        pairs = [f"{mount.source}/{name}:{mount.target}/{name}" for name in _sockets(plan)]
        return [word for pair in pairs for word in ("--mount-socket", pair)]
    if not Path(mount.source).is_dir():
        raise BackendError(
            f"{mount.source} is not a directory; smolvm mounts nothing else. Mount its parent."
        )
    return ["-v", f"{mount.source}:{mount.target}:{'rw' if mount.writable else 'ro'}"]


def _sockets(plan: Plan) -> list[str]:
    return ["proxy.sock", *(["agent.sock"] if plan.supervise else [])]


def setup_argument(plan: Plan, user: User) -> dict[str, Any]:
    """The argument for vm_setup.py."""
    trusted = any(mount.target == TRUST_INSIDE for mount in plan.mounts)
    parents = sorted({str(Path(file.path).parent) for file in plan.files if not is_in_home(file)})
    return {
        "uid": user.uid,
        "gid": user.gid,
        "home": HOME_INSIDE,
        "directories": [RUN_INSIDE, PROGRAMS_INSIDE, FILES, *parents],
        "files": [LOG, PID],
        "accounts": {
            "/etc/passwd": f"{USER_INSIDE}:x:{user.uid}:{user.gid}:agent:{HOME_INSIDE}:/bin/sh\n",
            "/etc/group": f"{USER_INSIDE}:x:{user.gid}:\n",
        },
        "sockets": [f"{SOCKETS_INSIDE}/{name}" for name in _sockets(plan)],
        "copies": [(f"{TRUST_INSIDE}/{name}", place) for name, place in _TRUST_COPIES] if trusted else [],
    }
