"""What tests have left behind: processes, listening sockets, mounts and control groups.

They are recognised by the directory of the run, which every program of a test has in its command, its
environment or its working directory.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from botbottle.backends.local import cgroups
from botbottle.backends.local.backend import LocalBackend
from tests.support.timeouts import until_patience_ends

LISTENING = "0A"  # in /proc/net/tcp
DEPTH_OF_HOMES = 3
A_WHILE = 20.0  # seconds; what was told to end may need a moment


def leftovers(directory: Path) -> list[str]:
    """What there still is of the run in this directory, after a while."""
    found: list[str] = []
    for _ in until_patience_ends(A_WHILE):
        found = [*_processes(directory), *_sockets(), *_mounts(directory), *_control_groups(directory)]
        if not found:
            break
    return found


def _processes(directory: Path) -> Iterator[str]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) not in _own_processes() and _is_of(entry, directory):
            yield f"process {entry.name}: {_text(entry / 'cmdline')}"


def _own_processes() -> set[int]:
    """This one and those that wait for it: pytest's own command has the directory too."""
    own, process = set(), os.getpid()
    while process > 1:
        own.add(process)
        process = int(_stat(process)[1])
    return own


def _stat(process: int) -> list[str]:
    """State, parent, and so on: what follows the name, which may contain anything."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()


def _is_of(entry: Path, directory: Path) -> bool:
    try:
        if _stat(int(entry.name))[0] == "Z":
            return False
        where = f"{entry.joinpath('cwd').readlink()} {_text(entry / 'cmdline')} {_text(entry / 'environ')} "
    except (OSError, IndexError):  # it has ended meanwhile, or it is somebody else's
        return False
    return re.search(rf"{re.escape(str(directory))}[/\s:]", where) is not None


def _text(path: Path) -> str:
    return path.read_bytes().replace(b"\0", b" ").decode(errors="replace")


def _sockets() -> Iterator[str]:
    """Those on which this process listens."""
    own = {_target(descriptor) for descriptor in Path("/proc/self/fd").iterdir()}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENING and f"socket:[{fields[9]}]" in own:
                yield f"a listening socket at {fields[1]}"


def _target(descriptor: Path) -> str:
    try:
        return str(descriptor.readlink())
    except OSError:
        return ""


def _mounts(directory: Path) -> Iterator[str]:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        if f" {directory}/" in line:
            yield f"mount {line.split()[4]}"


def _control_groups(directory: Path) -> Iterator[str]:
    """Those of bottles whose home is in this directory: a mark of the home is in their names."""
    groups = cgroups.leftovers("bot-bottle-")
    homes = {LocalBackend(Path(home)).tag for home in _directories(directory)} if groups else set()
    for group in groups:
        if any(Path(group).name.startswith(tag) for tag in homes):
            yield f"control group {group}"


def _directories(directory: Path) -> Iterator[str]:
    """Homes are not far down."""
    for path, names, _ in os.walk(directory):
        yield path
        if len(Path(path).relative_to(directory).parts) >= DEPTH_OF_HOMES:
            names.clear()
