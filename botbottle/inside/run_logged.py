"""Runs in a bottle's virtual machine as the agent's user: becomes a program whose output goes to a file.

Usage: run_logged.py LOG PIDFILE PROGRAM…. smolvm keeps no output of detached programs.
"""

# ruff: noqa: PTH123
import os
import sys

if __name__ == "__main__":
    log = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND)
    with open(sys.argv[2], "w", encoding="ascii") as file:
        file.write(str(os.getpid()))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.execv(sys.executable, [sys.executable, "-I", "-S", *sys.argv[3:]])  # noqa: S606
