"""Runs in a bottle before init.py: installs staged files, then becomes init.py.

For places that exist only once the bottle runs, such as a home in memory. Standard library only. Usage:
install_files.py DIRECTORY PROGRAM…, where DIRECTORY/index.json lists {name, path, mode}.
"""

# ruff: noqa: PTH103, PTH118, PTH120, PTH123
import json
import os
import sys


def place(directory: str) -> None:
    with open(os.path.join(directory, "index.json"), encoding="utf-8") as index:
        entries = json.load(index)
    for entry in entries:
        with open(os.path.join(directory, entry["name"]), "rb") as staged:
            content = staged.read()
        os.makedirs(os.path.dirname(entry["path"]), exist_ok=True)
        # The home of a restarted machine may contain the agent's own links.
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        descriptor = os.open(entry["path"], flags, entry["mode"])
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, entry["mode"])
            file.write(content)


if __name__ == "__main__":
    place(sys.argv[1])
    os.execv(sys.executable, [sys.executable, "-I", "-S", *sys.argv[2:]])  # noqa: S606
