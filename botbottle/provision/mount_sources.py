"""Which paths of the host may be mounted into a bottle, and where. Refusals are ValueErrors with the reason.

Trust boundary: a bottle can change whatever it may write to, links included, and the host follows links.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from botbottle.core.plan_types import HOME_INSIDE, WORKSPACE_INSIDE

# The kernel's, or where the host's services listen: a mounted socket is an unguarded way out.
_NEVER = tuple(Path(path) for path in ("/proc", "/sys", "/dev", "/run", "/boot"))
_ENGINES = ("/var/lib/docker", "/var/lib/containerd", "~/.docker", "~/.colima", "~/.local/share/containers")
_SYSTEM = ("/proc", "/sys", "/dev", "/run", "/var/run", "/etc", "/usr", "/bin", "/sbin", "/boot", "/root")
_MOST_LINKS = 40  # as the kernel
_TAKEN = ("/", "/home", HOME_INSIDE, WORKSPACE_INSIDE, "/tmp", "/var", "/var/tmp")  # noqa: S108


def check_target(target: str) -> None:
    """Raises ValueError for a target in the bottle that would hide something existing."""
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
    """Resolve the path if it may be mounted. `own` is the only part of `home` that may.

    The agent can write to `own`, so no link is followed in it.
    """
    passed = steps(source)
    path = passed[-1]
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
    if own is not None:
        _refuse_links(passed, source, where(own))
    _refuse_home(path, source, where(home), own and where(own))
    for engine in _engines():
        if path.is_relative_to(engine) or engine.is_relative_to(path):
            raise ValueError(
                f"{source} would give the bottle {engine}, which controls containers. Leave it out."
            )
    return str(path)


def check_not_writable(
    path: str, writable: Iterable[str], *, mounted: bool = False, who: str = "the agent"
) -> None:
    """Raises ValueError if a bottle could replace a step of a path that the host reads at a start.

    A path that is only mounted may be such a directory as a whole, or contain one: nobody in a bottle can
    replace the directory itself.
    """
    passed = steps(path)
    for place in map(where, writable):
        if any(step.is_relative_to(place) and not (mounted and step == place) for step in passed):
            raise ValueError(f"{path} lies in {place}, which {who} may write to. Keep it elsewhere.")
        if not mounted and place.is_relative_to(passed[-1]):
            raise ValueError(f"{path} holds {place}, which {who} may write to. Keep them apart.")


def steps(path: str | Path) -> tuple[Path, ...]:
    """Every path that is passed on the way, following links in turn; the last one is the destination.

    Raises ValueError for a loop of links.
    """
    here = Path("/")
    passed, links = [here], 0
    ahead = _names(str(Path.cwd() / path))
    while ahead:
        name = ahead.pop()
        if name == "..":
            here = here.parent
        elif (target := _link(here / name)) is None:
            here /= name
        else:
            passed.append(here / name)
            links += 1
            if links > _MOST_LINKS:
                raise ValueError(f"{path} goes through more than {_MOST_LINKS} links. Name where it leads.")
            here = Path("/") if target.startswith("/") else here
            ahead += _names(target)
        passed.append(here)
    return tuple(passed)


def where(path: str | Path) -> Path:
    """The destination of a path. Raises ValueError."""
    return steps(path)[-1]


def _names(path: str) -> list[str]:
    """The names of a path; the next one is last."""
    return [name for name in reversed(path.split("/")) if name not in ("", ".")]


def _link(path: Path) -> str | None:
    try:
        return str(path.readlink())
    except OSError:  # not a link; or unusable, which the next step reports
        return None


def _refuse_links(passed: tuple[Path, ...], source: str, own: Path) -> None:
    """Raises ValueError for a step that is not part of the final path: a link, or a `..`."""
    if not all(
        passed[-1].is_relative_to(step) for step in passed if step != own and step.is_relative_to(own)
    ):
        raise ValueError(
            f"{source} goes through a link in {own}, which the agent may have put there. Name the directory."
        )


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
    return [where(Path(place).expanduser()) for place in places]
