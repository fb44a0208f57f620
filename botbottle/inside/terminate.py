"""Runs in a bottle's virtual machine as the agent's user: asks the main command to end, and waits for it.

Usage: terminate.py PIDFILE SECONDS. The agent can write the file, but name only processes it can kill itself.
"""

# ruff: noqa: PTH123
import os
import signal
import sys
import time

if __name__ == "__main__":
    try:
        with open(sys.argv[1], encoding="ascii") as file:
            pid = int(file.read(20))
        os.kill(pid, signal.SIGTERM)
        end = time.monotonic() + float(sys.argv[2])
        while time.monotonic() < end:
            os.kill(pid, 0)
            time.sleep(0.05)
    except (OSError, ValueError):
        pass  # it has ended, or there was none
