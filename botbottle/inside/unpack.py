"""Runs in a bottle as the agent's user: unpacks an archive from standard input at a path, as `cp -r` would.

It can write only what the agent can write: links in the bottle lead nowhere else. Usage: unpack.py TARGET
NAME, where every entry of the archive is `x` or below `x/`. Standard library only.
"""

# ruff: noqa: PTH103, PTH112, PTH118, PTH120
import os
import sys
import tarfile


def receive(target: str, name: str) -> None:
    if os.path.isdir(target):
        target = os.path.join(target, name)
    os.makedirs(os.path.dirname(target) or "/", exist_ok=True)
    with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as archive:
        archive.extraction_filter = lambda member, _path: member  # the host made this archive
        for member in archive:
            member.name = target + member.name[1:]
            if member.islnk():
                member.linkname = target + member.linkname[1:]
            archive.extract(member, "/")


if __name__ == "__main__":
    try:
        receive(sys.argv[1], sys.argv[2])
    except (OSError, tarfile.TarError) as error:
        sys.exit(str(error))
