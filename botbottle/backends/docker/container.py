"""The settings of a bottle's container, and the files staged for it on the host.

Trust boundary: everything here narrows what the container may do. Settings hold no secret, since they can be
inspected; variables are in a file that is removed from the host once the container runs.
"""

from __future__ import annotations

import json
import os
import posixpath
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from docker.types import LogConfig, Ulimit  # type: ignore[import-untyped]
from docker.types import Mount as DockerMount

from botbottle import inside
from botbottle.backends import quotas, seccomp
from botbottle.backends.accounts import User, account_files, bottle_user
from botbottle.core.plan_types import (
    HOME_INSIDE,
    INIT_INSIDE,
    PROGRAMS_INSIDE,
    RUN_INSIDE,
    TRUST_INSIDE,
    WORKSPACE_INSIDE,
    BackendError,
    File,
    Mount,
    Plan,
)
from botbottle.provision.variables import default_variables

INSTALL_INSIDE = f"{PROGRAMS_INSIDE}/install_files.py"
FILES_INSIDE = f"{RUN_INSIDE}/files"
VARIABLES_INSIDE = f"{RUN_INSIDE}/variables.json"
PYTHON = ("python3", "-I", "-S")
_INSIDE = inside.DIRECTORY
_IN_MEMORY = (HOME_INSIDE, "/tmp", "/run")  # noqa: S108 - the bottle's own
_BUNDLE_PLACES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
)
_NO_RESOLVER = "# A bottle has no network. Names are resolved by the proxy.\n"
_CA_PLACE = "/usr/local/share/ca-certificates/bot-bottle.crt"


def engine_user(home: Path, security_options: Sequence[str]) -> User:
    """The container's user. A rootless engine's root is the operator on the host, without capabilities."""
    if any("rootless" in option for option in security_options):
        return User(0, 0)
    return bottle_user(home)


def environment(plans: Mapping[str, str], image_variables: Sequence[str]) -> dict[str, str]:
    """The plan's variables on top of the image's. An image's value wins over our defaults."""
    image = dict(entry.split("=", 1) for entry in image_variables if "=" in entry)
    own, defaults = dict(plans), default_variables()
    for name in ("PATH", "LANG", "SHELL"):
        if name in image and own.get(name) == defaults.get(name):
            own[name] = image[name] if name != "PATH" else f"{HOME_INSIDE}/.local/bin:{image[name]}"
    return {**image, **own}


class Staged:
    """The bottle's files on the host, under `run/docker`, readable for the bottle's user."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.variables = directory / "variables.json"

    def write(
        self, plan: Plan, user: User, variables: Mapping[str, str], image: Mapping[str, str | None]
    ) -> None:
        """Write the staged files. `image` has the texts of the image's passwd and group, if it has them."""
        self.remove()
        for name in ("inside", "etc", "files"):
            (self.directory / name).mkdir(parents=True)
            (self.directory / name).chmod(0o755)
        for name in ("init.py", "bridge.py", "install_files.py"):
            self._put(f"inside/{name}", (_INSIDE / name).read_text(encoding="utf-8"), 0o644)
        etc = account_files(user, image["passwd"], image["group"]) | {"resolv.conf": _NO_RESOLVER}
        for name, content in etc.items():
            self._put(f"etc/{name}", content, 0o644)
        for number, file in enumerate(plan.files):
            self._put(f"files/{number}", file.content, 0o400 | file.mode, user)
        index = [
            {"name": str(number), "path": file.path, "mode": file.mode}
            for number, file in enumerate(plan.files)
            if in_memory(file.path)
        ]
        self._put("files/index.json", json.dumps(index), 0o644)
        self._put("variables.json", json.dumps(dict(variables)), 0o600, user)

    def _put(self, name: str, content: str, mode: int, owner: User | None = None) -> None:
        descriptor = os.open(self.directory / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(content)
            if owner is not None and os.geteuid() == 0:
                os.fchown(descriptor, owner.uid, owner.gid)
            os.fchmod(descriptor, mode)

    def forget_variables(self) -> None:
        """Remove the variables from the host; the container keeps its mount of the file."""
        self.variables.unlink(missing_ok=True)

    def remove(self) -> None:
        if self.directory.is_dir():
            shutil.rmtree(self.directory)

    def mounts(self, files: Sequence[File]) -> list[Mount]:
        mounts = [
            Mount(f"{self.directory}/inside", PROGRAMS_INSIDE),
            Mount(f"{self.directory}/files", FILES_INSIDE),
            Mount(str(self.variables), VARIABLES_INSIDE),
            *(
                Mount(f"{self.directory}/etc/{name}", f"/etc/{name}")
                for name in ("passwd", "group", "resolv.conf")
            ),
        ]
        for number, file in enumerate(files):
            if file.path.startswith(f"{WORKSPACE_INSIDE}/"):
                raise BackendError(
                    f"{file.path} is in the workspace, which is yours. Put the file there yourself."
                )
            if not in_memory(file.path):
                mounts.append(Mount(f"{self.directory}/files/{number}", file.path))
        return mounts


def in_memory(path: str) -> bool:
    return any(path.startswith(f"{place}/") for place in _IN_MEMORY)


def settings(plan: Plan, user: User, staged: Staged, labels: dict[str, str], *, tty: bool) -> dict[str, Any]:
    """The arguments for the SDK's `containers.create`."""
    mounts = [*plan.mounts, *staged.mounts(plan.files)]
    arguments = ["--env-file", VARIABLES_INSIDE, *([] if plan.supervise else ["--no-supervise"])]
    install = [INSTALL_INSIDE, FILES_INSIDE] if any(in_memory(file.path) for file in plan.files) else []
    return {
        "entrypoint": [*PYTHON, *install, INIT_INSIDE],
        "command": [*arguments, "--", *plan.command],
        "working_dir": plan.workdir,
        "hostname": plan.slug,
        "user": str(user),
        "labels": labels,
        "tty": tty,
        "stdin_open": True,
        "mounts": [_bind(mount) for mount in [*mounts, *_trust(mounts)]],
        "tmpfs": _tmpfs(user),
        "stop_signal": "SIGTERM",
        "healthcheck": {"test": ["NONE"]},
        "log_config": LogConfig(type="json-file", config={"max-size": "10m", "max-file": "2"}),
        **_confinement(),
        **_limits(plan),
    }


def _confinement() -> dict[str, Any]:
    profile = json.dumps(seccomp.docker_profile())
    return {
        "network_mode": "none",
        "read_only": True,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true", f"seccomp={profile}"],
        "ipc_mode": "private",
        "cgroupns": "private",
        "restart_policy": {"Name": "no"},
    }


def _limits(plan: Plan) -> dict[str, Any]:
    files = plan.limits.files or quotas.FILES
    limits: dict[str, Any] = {
        "pids_limit": plan.limits.pids or quotas.processes(),
        "ulimits": [Ulimit(name="nofile", soft=files, hard=files)],
    }
    if plan.limits.cpus is not None:
        limits["nano_cpus"] = int(plan.limits.cpus * 1e9)
    if plan.limits.memory is not None:
        limits |= {"mem_limit": plan.limits.memory, "memswap_limit": plan.limits.memory}
    return limits


def _tmpfs(user: User) -> dict[str, str]:
    owned = f"rw,exec,nosuid,nodev,uid={user.uid},gid={user.gid}"  # an image's mode can replace ours
    return {
        "/tmp": f"{owned},mode=1777",  # noqa: S108 - the bottle's own
        HOME_INSIDE: f"{owned},mode=0700",
        "/run": "rw,noexec,nosuid,nodev,mode=0755",
    }


def _bind(mount: Mount) -> Any:
    return DockerMount(
        mount.target, mount.source, type="bind", read_only=not mount.writable, propagation="rprivate"
    )


def _trust(mounts: Sequence[Mount]) -> list[Mount]:
    """Mount the bottle's CA also in the places where tools look that read no variable."""
    sources = [mount.source for mount in mounts if mount.target == TRUST_INSIDE]
    if not sources:
        return []
    bundle, own = (posixpath.join(sources[-1], name) for name in ("bundle.pem", "ca.pem"))
    return [*(Mount(bundle, place) for place in _BUNDLE_PLACES), Mount(own, _CA_PLACE)]
