"""What of the host may be mounted into a bottle, and where. Each refusal is a ValueError that says why.

Trust boundary: the bottle can change whatever it may write to, links included, and the host follows links.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from botbottle.backends.base import HOME_INSIDE, WORKSPACE_INSIDE

# Of the kernel, or where the host's services listen: a mounted socket is a way out that asks nobody.
_NEVER = tuple(Path(path) for path in ("/proc", "/sys", "/dev", "/run", "/boot"))
_ENGINES = ("/var/lib/docker", "/var/lib/containerd", "~/.docker", "~/.colima", "~/.local/share/containers")
_SYSTEM = ("/proc", "/sys", "/dev", "/run", "/var/run", "/etc", "/usr", "/bin", "/sbin", "/boot", "/root")
_TAKEN = ("/", "/home", HOME_INSIDE, WORKSPACE_INSIDE, "/tmp", "/var", "/var/tmp")  # noqa: S108


def check_target(target: str) -> None:
    """Where in the bottle something of the host may appear: nowhere that hides what is already there."""
    path = PurePosixPath(target)
    if not target.isprintable() or not path.is_absolute() or str(path) != target or ".." in path.parts:
        raise ValueError(f"must be an absolute path in its plain form, such as /data; got {target!a}.")
    top = f"/{path.parts[1]}" if len(path.parts) > 1 else "/"
    if target.startswith("//") or target in _TAKEN or top.startswith("/lib"):
        raise ValueError(f"{target} is the bottle's own. Choose another place, such as /data.")
    if any(path.is_relative_to(own) for own in _SYSTEM):
        raise ValueError(f"{target} belongs to the bottle's system. Choose another place, such as /data.")
    if path.is_relative_to(WORKSPACE_INSIDE):
        raise ValueError(f"{target} is in the workspace, where the agent could make it a link. Choose /data.")


def check_source(source: str, *, home: Path, own: Path | None = None) -> str:
    """The path with all links followed, once it may be mounted. `own` is the one part of `home` that may."""
    path = _resolved(source)
    try:
        kind = path.stat().st_mode
    except OSError as error:
        raise ValueError(f"{source} cannot be used: {error.strerror}. Make it, or name another.") from error
    if not (stat.S_ISDIR(kind) or stat.S_ISREG(kind)):
        raise ValueError(f"{source} is a socket or a device. Only files and directories can be mounted.")
    for place in _NEVER:
        if path.is_relative_to(place) or place.is_relative_to(path):
            raise ValueError(
                f"{source} would give the bottle {place}, which leads out of it. Name something narrower."
            )
    _refuse_home(path, source, _resolved(home), own and _resolved(own))
    for engine in _engines():
        if path.is_relative_to(engine) or engine.is_relative_to(path):
            raise ValueError(
                f"{source} would give the bottle {engine}, which controls containers. Leave it out."
            )
    return str(path)


def check_not_writable(path: str, writable: Iterable[str]) -> None:
    """What the host reads at a start must not lie where a bottle can have put a link in its place."""
    for candidate in {Path(os.path.normpath(path)), _resolved(path)}:
        for place in writable:
            if candidate.is_relative_to(place):
                raise ValueError(f"{path} lies in {place}, which the agent may write to. Keep it elsewhere.")


def _refuse_home(path: Path, source: str, home: Path, own: Path | None) -> None:
    if own is not None and path.is_relative_to(own):
        return
    if path.is_relative_to(home) or home.is_relative_to(path):
        raise ValueError(
            f"{source} would give the bottle {home}, with every bottle's keys. Name something narrower."
        )


def _engines() -> list[Path]:
    scheme, _, address = os.environ.get("DOCKER_HOST", "").partition("://")
    places = [*_ENGINES, *([address] if scheme == "unix" and address else [])]
    return [_resolved(Path(place).expanduser()) for place in places]


def _resolved(path: str | Path) -> Path:
    try:
        return Path(os.path.realpath(path))
    except OSError as error:  # a link that may not even be read
        raise ValueError(f"{path} cannot be used: {error.strerror}. Name another.") from error
