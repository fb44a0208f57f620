"""Run a command as another uid: UID COMMAND…, with the interpreter and this project in reach.

Both may lie below directories that only root may pass. Then the command sees these, in a mount namespace of
its own, with nothing in them but what it needs.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
CLONE_NEWNS = 0x20000


def main() -> None:
    uid, command = int(sys.argv[1]), sys.argv[2:]
    if os.geteuid() == 0:
        needed = {Path(place).resolve() for place in (sys.base_prefix, sys.prefix, ROOT)}
        closed = {top for place in needed if (top := closed_parent(place)) is not None}
        if closed:
            unshare_mounts()
        for top in closed:
            show_only([place for place in needed if place.is_relative_to(top)], top)
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    os.execvp(command[0], command)


def closed_parent(place: Path) -> Path | None:
    return next((parent for parent in reversed(place.parents) if not parent.stat().st_mode & 0o001), None)


def unshare_mounts() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), "unshare")
    mount("--make-rprivate", "/")


def show_only(places: list[Path], top: Path) -> None:
    stage = Path(tempfile.mkdtemp())
    mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", stage)
    for place in places:
        (stage / place.relative_to(top)).mkdir(parents=True)
        mount("--bind", place, stage / place.relative_to(top))
    mount("--rbind", stage, top)
    subprocess.run(["umount", "--lazy", str(stage)], check=True)
    stage.rmdir()


def mount(*words: object) -> None:
    subprocess.run(["mount", *map(str, words)], check=True)


if __name__ == "__main__":
    main()
