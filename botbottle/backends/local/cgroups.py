"""Limits of a bottle, or of one program in it: by control groups (v2 or v1), else by what limits one process.

Says truthfully which limits hold. Nothing here trusts or reads what is inside a bottle.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import resource
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from botbottle.backends import quotas
from botbottle.backends.local import supervisor_io
from botbottle.core.plan_types import Limits

PERIOD = 100_000  # microseconds; the kernel's default, within which a share of the processors is spent
_NAMES = ("memory", "pids", "cpus")


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a bottle's processes go before they become the bottle, and what that does not limit."""

    cgroups: tuple[str, ...] = ()
    rlimits: tuple[tuple[int, int], ...] = ()
    processors: tuple[int, ...] = ()  # the only ones to run on; empty: all
    pids_inside: int | None = None  # for the first program to set, in the bottle's own user namespace
    missing: tuple[str, ...] = ()  # names of limits that were wanted and do not hold
    weaker: tuple[str, ...] = ()  # names of limits that hold in part


def place(name: str, wanted: Limits, *, proc: str = "/proc/self") -> Placement:
    """Make the groups. What cannot be had is named in the answer, not passed over."""
    made, open_ = _groups(name, wanted, parents(proc))
    rlimits: tuple[tuple[int, int], ...] = ()
    if "memory" in open_ and wanted.memory is not None:
        # Not RLIMIT_AS: runtimes reserve addresses by the terabyte.
        rlimits = ((resource.RLIMIT_DATA, wanted.memory),)
    processors = _some_processors(wanted.cpus) if "cpus" in open_ and wanted.cpus else ()
    inside = wanted.pids if "pids" in open_ and quotas.processes_are_counted_within() else None
    return Placement(
        tuple(made),
        rlimits,
        processors,
        inside,
        missing=("pids",) if "pids" in open_ and inside is None else (),
        weaker=tuple(limit for limit in open_ if limit != "pids"),
    )


def _some_processors(share: float) -> tuple[int, ...]:
    """So many whole ones, not the same for every bottle. Programs can choose others: no limit for a rogue."""
    import random  # noqa: PLC0415 - takes as long to import as all else here, and few want it

    usable = sorted(os.sched_getaffinity(0))
    return tuple(random.sample(usable, min(len(usable), math.ceil(share))))


def place_within(pid: int, name: str, wanted: Limits, *, proc: str = "/proc") -> Placement:
    """The same for one process that runs already and all it will start, below the groups that it is in.

    Not so in v2 where it is in a group of its bottle: one with processes in it hands no controllers down, and
    beside it the bottle's own limits would not hold. What no group limits is named as weaker.
    """
    theirs, ours = _own_groups(f"{proc}/{pid}"), _own_groups(f"{proc}/self")
    if theirs.get("") != ours.get(""):
        theirs.pop("", None)
    made, open_ = _groups(name, wanted, parents(f"{proc}/self", theirs))
    try:
        for group in made:
            Path(group, "cgroup.procs").write_text(str(pid))
    except OSError:  # all of them or nothing
        remove(made)
        made, open_ = [], _wanted(wanted)
    return Placement(tuple(made), weaker=tuple(open_))


def parents(
    proc: str = "/proc/self", groups: dict[str, str] | None = None
) -> list[tuple[Path, frozenset[str]]]:
    """Directories below which we may try to make a group, each with the controllers it would have."""
    groups = _own_groups(proc) if groups is None else groups
    found = []
    for mount, kind, options in _mounts(proc):
        if kind == "cgroup2" and "" in groups:
            own = mount / groups[""].lstrip("/")
            # Beside ourselves: a group with processes in it cannot hand controllers down; only the root can.
            parent = own if own == mount else own.parent
            found.append((parent, _handed_down(parent)))
        elif kind == "cgroup":
            for controller in options & {"memory", "pids", "cpu"}:
                if controller in groups:
                    found.append((mount / groups[controller].lstrip("/"), frozenset({controller})))
    return found


def _groups(
    name: str, wanted: Limits, places: list[tuple[Path, frozenset[str]]]
) -> tuple[list[str], list[str]]:
    """Those that could be made, and the names of the limits that none of them has."""
    open_ = _wanted(wanted)
    made: list[str] = []
    for parent, controllers in places:
        here = [limit for limit in open_ if _controller(limit) in controllers]
        if here and _make(parent / name, here, wanted):
            made.append(str(parent / name))
            open_ = [limit for limit in open_ if limit not in here]
    return made, open_


def _wanted(limits: Limits) -> list[str]:
    return [name for name in _NAMES if getattr(limits, name) is not None]


def leftovers(prefix: str) -> list[str]:
    """Groups with this beginning of a name, whoever made them from where we are."""
    found = []
    for parent, _ in parents():
        with contextlib.suppress(OSError):
            found += [str(child) for child in parent.iterdir() if child.name.startswith(prefix)]
    return found


def remove(paths: list[str]) -> None:
    """Of what has ended."""
    supervisor_io.remove_cgroups(paths)


def kill(paths: Sequence[str]) -> None:
    """Everything in these groups, however it has forked or changed its name."""
    for _ in range(100):  # one may fork while the others are killed
        members = _members(paths)
        if not members:
            return
        for pid in members:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _members(paths: Sequence[str]) -> set[int]:
    found: set[int] = set()
    for path in paths:
        with contextlib.suppress(OSError):
            found |= {int(pid) for pid in Path(path, "cgroup.procs").read_text().split()}
    return found - {0}  # of another namespace: not ours to name


def _controller(limit: str) -> str:
    return "cpu" if limit == "cpus" else limit


def _own_groups(proc: str) -> dict[str, str]:
    """Controller → our group; the unified hierarchy's name is empty."""
    groups: dict[str, str] = {}
    for line in Path(proc, "cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        groups |= dict.fromkeys(names.split(","), path)
    return groups


def _mounts(proc: str) -> list[tuple[Path, str, frozenset[str]]]:
    found = []
    for line in Path(proc, "mounts").read_text().splitlines():
        _, where, kind, options = line.split()[:4]
        if kind in {"cgroup", "cgroup2"}:
            path = re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), where)
            found.append((Path(path), kind, frozenset(options.split(","))))
    return found


def _handed_down(parent: Path) -> frozenset[str]:
    """The controllers that children of this v2 group get; asks for ours where that is allowed."""
    control = parent / "cgroup.subtree_control"
    for controller in ("memory", "pids", "cpu"):
        with contextlib.suppress(OSError):
            control.write_text(f"+{controller}")
    try:
        return frozenset(control.read_text().split())
    except OSError:
        return frozenset()


def _make(group: Path, limits: list[str], wanted: Limits) -> bool:
    """All of them or nothing: a group that does not limit is no group."""
    try:
        group.mkdir(exist_ok=True)
        for name, value in _settings(group, limits, wanted):
            (group / name).write_text(value)
    except OSError:
        with contextlib.suppress(OSError):
            group.rmdir()
        return False
    return os.access(group / "cgroup.procs", os.W_OK)


def _settings(group: Path, limits: list[str], wanted: Limits) -> list[tuple[str, str]]:
    """File and value, in the words of the version this group is of."""
    unified = (group / "cgroup.controllers").exists()
    settings: list[tuple[str, str]] = []
    if "memory" in limits:
        settings.append(("memory.max" if unified else "memory.limit_in_bytes", str(wanted.memory)))
        swap = "memory.swap.max" if unified else "memory.memsw.limit_in_bytes"
        if (group / swap).exists():
            settings.append((swap, "0" if unified else str(wanted.memory)))
    if "pids" in limits:
        settings.append(("pids.max", str(wanted.pids)))
    if "cpus" in limits:
        quota = max(1000, int(float(wanted.cpus or 1) * PERIOD))
        settings += (
            [("cpu.max", f"{quota} {PERIOD}")]
            if unified
            else [("cpu.cfs_period_us", str(PERIOD)), ("cpu.cfs_quota_us", str(quota))]
        )
    return settings
