"""Runs beside a workspace that it can only read: prints its branch, commit and changed files as JSON.

Uncommitted files are packed into the archive named by the second argument. A repository can make git run
programs, so this runs in a sandbox without sockets; the host believes nothing it prints.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile

MOST_BYTES = 64 * 1024**2
MOST_FILES = 2000
SECONDS = 60
GIT = ["git", "--no-optional-locks", "-c", "safe.directory=*", "-c", "core.fsmonitor=false"]


def main() -> None:
    workspace, archive = sys.argv[1:]
    os.chdir(workspace)
    state: dict[str, object] = {"branch": branch()}
    try:
        state["commit"] = git("rev-parse", "--verify", "-q", "HEAD").strip()
        changed = git("status", "--porcelain=v1", "-z", "--no-renames", "--untracked-files=all")
        paths = [entry[3:] for entry in changed.split("\0") if entry]
        state["changed"] = paths[:MOST_FILES]
        state["changes"] = len(paths)
        state["left_out"] = pack(paths, archive)
    except (OSError, subprocess.SubprocessError) as error:
        state["unknown"] = str(error)[:300]
    sys.stdout.write(json.dumps(state) + "\n")


def branch() -> str:
    """The branch, without git: images often do not have it."""
    try:
        with open(".git/HEAD", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            head = file.read(1000).strip()
    except OSError:
        return ""
    return head.removeprefix("ref: refs/heads/")


def git(*arguments: str) -> str:
    ran = subprocess.run(  # noqa: S603
        [*GIT, *arguments], stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS, check=False
    )
    return ran.stdout.decode(errors="surrogateescape") if ran.returncode == 0 else ""


def pack(paths: list[str], archive: str) -> int:
    """Pack the files; returns how many did not fit or cannot be packed. Deleted ones are skipped."""
    size = left_out = 0
    with tarfile.open(archive, "w:gz") as tar:
        for number, path in enumerate(path for path in paths if os.path.lexists(path)):
            found = os.lstat(path)
            size += found.st_size
            if number >= MOST_FILES or size > MOST_BYTES:
                size -= found.st_size
                left_out += 1
                continue
            try:
                tar.add(path, recursive=False)
            except OSError:
                left_out += 1
    return left_out


if __name__ == "__main__":
    main()
