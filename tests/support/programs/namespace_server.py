"""Runs inside a network namespace that has only loopback: starts the server, then runs the client
commands it reads from stdin, one JSON line each, until stdin ends. It is the first process of its own
PID namespace: nothing it starts can outlive it, and nothing in here can reach another machine."""

import contextlib
import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

SIOCSIFFLAGS = 0x8914
IFF_UP_RUNNING = 0x1 | 0x40
START_SECONDS = 120  # only a server that is dead takes them


def raise_loopback() -> None:
    with socket.socket() as handle:
        fcntl.ioctl(handle, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP_RUNNING))


def ports_of(home: Path, server: subprocess.Popen[bytes]) -> dict[str, int]:
    """The ports the server published, once it says on the agents' one that it is well."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise RuntimeError(f"the server ended with code {server.returncode}")
        with contextlib.suppress(OSError, ValueError):
            ports: dict[str, int] = json.loads((home / ".http.port").read_text())
            urllib.request.urlopen(f"http://127.0.0.1:{ports['agent']}/health", timeout=2).close()
            return ports
        time.sleep(0.05)
    raise RuntimeError(f"the server was not well within {START_SECONDS} seconds")


def end_group(process: subprocess.Popen[Any], how: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, how)


def run(job: dict[str, Any]) -> dict[str, Any]:
    """One command in its own process group, ended with all its children when it exits, when `until` appears
    in its output, or when its time is up (code: null)."""
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            job["argv"], env=job["env"], cwd=job["cwd"], start_new_session=True, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
        )  # fmt: skip
        assert process.stdin and process.stdout
        overdue = threading.Event()
        alarm = threading.Timer(job["timeout"], lambda: (overdue.set(), end_group(process, signal.SIGKILL)))
        alarm.start()
        said: list[str] = []
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(job["input"])
            process.stdin.flush()
            if not job["until"]:
                process.stdin.close()
        for line in process.stdout:
            said.append(line)
            if job["until"] and job["until"] in line:
                break
        else:
            process.wait()
        alarm.cancel()
        end_group(process, signal.SIGKILL)
        process.wait()
        errors.seek(0)
        return {
            "code": None if overdue.is_set() else process.returncode,
            "out": "".join(said),
            "err": errors.read().decode(errors="replace"),
        }


def main() -> None:
    plan = json.loads(sys.stdin.readline())
    raise_loopback()
    with Path(plan["log"]).open("wb") as log:
        server = subprocess.Popen(
            plan["server"], env=plan["env"], cwd=plan["cwd"], start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        ports = ports_of(Path(plan["env"]["BOTTLE_HOME"]), server)
        answer({"ports": ports})
        for line in sys.stdin:
            answer(run(json.loads(line)))
    except (OSError, RuntimeError, ValueError) as problem:
        answer({"problem": str(problem)})
    finally:
        end_group(server, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(timeout=10)


def answer(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
