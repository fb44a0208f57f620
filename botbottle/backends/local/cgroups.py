"""Limits a bottle, or a program in it, by control groups (v2 or v1), else by limits on each process.

Reports which limits hold. Nothing here trusts or reads what is inside a bottle.
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

PERIOD = 100_000  # microseconds, the kernel's default: the period of a CPU quota
_NAMES = ("memory", "pids", "cpus")


@dataclass(frozen=True, slots=True)
class Placement:
    """The control groups for a bottle's processes, and the limits that they do not enforce."""

    cgroups: tuple[str, ...] = ()
    rlimits: tuple[tuple[int, int], ...] = ()
    processors: tuple[int, ...] = ()  # run on these only; empty: all
    pids_inside: int | None = None  # set by the first program, in the bottle's own user namespace
    missing: tuple[str, ...] = ()  # names of wanted limits that do not hold
    weaker: tuple[str, ...] = ()  # names of limits that hold in part


def place(name: str, wanted: Limits, *, proc: str = "/proc/self") -> Placement:
    """Make the groups. Limits that cannot be had are named in the result."""
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
    """Choose whole processors, spread over bottles. A hostile program can choose others."""
    import random  # noqa: PLC0415 - takes as long to import as all else here, and few want it

    usable = sorted(os.sched_getaffinity(0))
    return tuple(random.sample(usable, min(len(usable), math.ceil(share))))


def place_within(pid: int, name: str, wanted: Limits, *, proc: str = "/proc") -> Placement:
    """Make groups for one running process and all it will start, below the groups that it is in.

    Not in v2 where it is in a group of its bottle: a group with processes passes no controllers to its
    children, and beside it the bottle's own limits would not hold. Limits without a group are named as
    weaker.
    """
    target, own = _own_groups(f"{proc}/{pid}"), _own_groups(f"{proc}/self")
    if target.get("") != own.get(""):
        target.pop("", None)
    made, open_ = _groups(name, wanted, parents(f"{proc}/self", target))
    try:
        for group in made:
            Path(group, "cgroup.procs").write_text(str(pid))
    except OSError:  # all or nothing
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
            # Beside our own group: one with processes in it cannot pass controllers on; only the root can.
            parent = own if own == mount else own.parent
            found.append((parent, _delegated(parent)))
        elif kind == "cgroup":
            for controller in options & {"memory", "pids", "cpu"}:
                if controller in groups:
                    found.append((mount / groups[controller].lstrip("/"), frozenset({controller})))
    return found


def _groups(
    name: str, wanted: Limits, places: list[tuple[Path, frozenset[str]]]
) -> tuple[list[str], list[str]]:
    """The groups that could be made, and the names of the limits that none of them enforces."""
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
    """Groups whose name begins with `tag`, in every place where we may have made one."""
    found = []
    for parent, _ in parents():
        with contextlib.suppress(OSError):
            found += [str(child) for child in parent.iterdir() if child.name.startswith(prefix)]
    return found


def remove(paths: list[str]) -> None:
    """Remove the groups of a bottle that has ended."""
    supervisor_io.remove_cgroups(paths)


def kill(paths: Sequence[str]) -> None:
    """Kill every process in these groups, however it has forked or changed its name."""
    for _ in range(100):  # a process may fork while the others are killed
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
    return found - {0}  # in another namespace, which we cannot name


def _controller(limit: str) -> str:
    return "cpu" if limit == "cpus" else limit


def _own_groups(proc: str) -> dict[str, str]:
    """Controller → our group; the unified hierarchy has an empty name."""
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


def _delegated(parent: Path) -> frozenset[str]:
    """The controllers that children of this v2 group get; enables the ones we need where allowed."""
    control = parent / "cgroup.subtree_control"
    for controller in ("memory", "pids", "cpu"):
        with contextlib.suppress(OSError):
            control.write_text(f"+{controller}")
    try:
        return frozenset(control.read_text().split())
    except OSError:
        return frozenset()


def _make(group: Path, limits: list[str], wanted: Limits) -> bool:
    """Make all groups or none: a group without its limits is useless."""
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
    """File and value, in the syntax of the group's version."""
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
