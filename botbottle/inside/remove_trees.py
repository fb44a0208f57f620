"""Runs in a bottle as the agent's user: removes trees, and follows no link on the way.

Usage: remove_trees.py PATH…; what is not there is fine, what is left is an error. Standard library only.
"""

# ruff: noqa: PTH101, PTH108, PTH112, PTH114, PTH118, SIM105
import os
import shutil
import sys


def remove(path: str) -> None:
    if os.path.islink(path) or not os.path.isdir(path):
        if os.path.lexists(path):
            os.unlink(path)
        return
    enter(path)
    for directory, names, _ in os.walk(path):
        for name in names:
            enter(os.path.join(directory, name))
    shutil.rmtree(path)


def enter(directory: str) -> None:
    """A directory that was closed, by the server or by the agent, holds files too."""
    if not os.path.islink(directory):
        try:
            os.chmod(directory, 0o700)
        except OSError:  # then what is in it says why
            pass


if __name__ == "__main__":
    try:
        for argument in sys.argv[1:]:
            remove(argument)
    except OSError as error:
        sys.exit(str(error))
