"""Runs as root in a bottle's virtual machine before the agent: makes directories, the account and the CA.

Usage: vm_setup.py JSON with uid, gid, home, directories, files, accounts, sockets and copies.
"""

# ruff: noqa: PTH101, PTH103, PTH120, PTH123, S103
from __future__ import annotations

import json
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def prepare(wanted: dict[str, Any]) -> None:
    for path in wanted["directories"]:
        os.makedirs(path, exist_ok=True)
        os.chmod(path, 0o755)
    os.makedirs(wanted["home"], exist_ok=True)
    os.chown(wanted["home"], wanted["uid"], wanted["gid"])
    for path in wanted["files"]:
        with open(path, "wb") as file:
            os.fchown(file.fileno(), wanted["uid"], wanted["gid"])
    for path, line in wanted["accounts"].items():
        with open(path, "a", encoding="utf-8") as file:
            file.write(line)
    for path in filter(os.path.exists, wanted["sockets"]):
        os.chmod(path, 0o666)  # the machine has no other users
    for source, target in wanted["copies"]:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(source, "rb") as file, open(target, "wb") as copy:
            copy.write(file.read())


if __name__ == "__main__":
    prepare(json.loads(sys.argv[1]))
