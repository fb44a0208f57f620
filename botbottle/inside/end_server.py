"""Runs in a bottle: ends every process that carries a managed server's mark, however it has forked.

Usage: end_server.py MARK SECONDS: sends SIGTERM, waits SECONDS, then kills. Standard library only.
"""

# ruff: noqa: PTH123, PTH208, SIM105
import os
import signal
import sys
import time


def marked(mark: bytes) -> "list[int]":
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                variables = file.read().split(b"\0")
            with open(f"/proc/{name}/stat", "rb") as file:
                ended = file.read().rpartition(b")")[2].split()[0] in b"ZX"
        except OSError:  # it ended meanwhile, or is not the agent's
            continue
        if mark in variables and not ended:
            found.append(int(name))
    return found


def send(pids: "list[int]", number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except OSError:
            pass


def main(mark: bytes, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    send(marked(mark), signal.SIGTERM)
    while marked(mark) and time.monotonic() < deadline:
        time.sleep(0.05)
    for _ in range(100):  # a process may fork while the others are killed
        left = marked(mark)
        if not left:
            return
        send(left, signal.SIGKILL)
        time.sleep(0.02)
    sys.exit("some processes do not end")


if __name__ == "__main__":
    main(os.fsencode(sys.argv[1]), float(sys.argv[2]))
