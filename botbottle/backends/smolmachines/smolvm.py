"""The `smolvm` command line: finds it, tells it from its namesake, and turns its failures into sentences."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from botbottle.backends.base import Pipes, Unavailable, one_line
from botbottle.core.plan_types import BackendError

HINT = "Install it with: pip install smolmachines"
SECONDS = 60.0
_PASSED = (
    "SMOLVM_LIB_DIR",
    "SMOLVM_AGENT_ROOTFS",
)  # other SMOLVM_ variables would change our requests


class Refused(BackendError):
    """smolvm refused; the message is its own."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"smolvm refused: {message}")
        self.is_missing = code == "NOT_FOUND" or message.endswith("not found")


def find_program() -> str:
    """The path of the right binary. Raises Unavailable."""
    found = list(_candidates())
    for path in found:
        if _manages_machines(path):
            return path
    if found:
        raise Unavailable(
            f"{found[0]} is another program of that name: it has no `machine create`. {HINT}, "
            "and put its smol-vmm on your PATH."
        )
    raise Unavailable(f"The smolmachines backend needs smolvm, which is not installed. {HINT}")


def _candidates() -> Iterator[str]:
    for name in ("smolvm", "smol-vmm"):
        path = shutil.which(name)
        if path:
            yield path
    package = importlib.util.find_spec("smol")  # its wheel puts nothing on the PATH
    for directory in (package.submodule_search_locations or []) if package else []:
        path = f"{directory}/smol-vmm"
        if os.access(path, os.X_OK):
            yield path


def _manages_machines(path: str) -> bool:
    command = [path, "machine", "--help"]
    try:
        said = subprocess.run(  # noqa: S603
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return said.returncode == 0 and all(word in said.stdout for word in (b"create", b"cp", b"--state-dir"))


def check_virtualization() -> None:
    """Raises Unavailable."""
    if sys.platform != "linux":
        raise Unavailable("smolvm keeps its state under BOTTLE_HOME on Linux only. Use another backend.")
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        raise Unavailable(
            "smolvm needs /dev/kvm, which is missing or closed to your account. Turn on virtualization in "
            "the firmware (nested virtualization in a virtual machine), and join the group kvm."
        )


class Smolvm:
    """The command line with its own state directory."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self._program = ""

    def call(self, verb: str, *rest: str, seconds: float = SECONDS, stdin: IO[bytes] | None = None) -> bytes:
        """Run a command and return its output. Raises Refused, and BackendError when it takes too long."""
        command = self._command(verb, "--error-format", "json", *rest)
        try:
            said = subprocess.run(  # noqa: S603
                command,
                stdin=stdin or subprocess.DEVNULL,
                capture_output=True,
                timeout=seconds,
                check=False,
                env=_environment(),
            )
        except subprocess.TimeoutExpired as error:
            raise BackendError(
                f"`smolvm machine {verb}` did not end within {seconds:.0f} s. See whether virtualization "
                "works here at all: smolvm machine run --image DIRECTORY -- true"
            ) from error
        if said.returncode != 0:
            raise _refusal(said.stderr, said.stdout)
        return said.stdout

    def call_json(self, verb: str, *rest: str) -> Any:
        said = self.call(verb, "--json", *rest)
        try:
            return json.loads(said)
        except ValueError as error:
            raise BackendError(f"`smolvm machine {verb} --json` printed no JSON. {HINT} -U") from error

    def foreground(self, verb: str, *rest: str) -> int:
        """Run a command on this terminal; returns the exit code."""
        command = self._command(verb, *rest)
        return subprocess.run(command, check=False, env=_environment()).returncode  # noqa: S603

    @contextmanager
    def output(self, verb: str, *rest: str) -> Iterator[IO[bytes]]:
        """Yield a command's output while it runs."""
        command = self._command(verb, *rest)
        process = subprocess.Popen(  # noqa: S603
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=_environment()
        )
        with process:
            try:
                assert process.stdout is not None  # noqa: S101 - it was asked for
                yield process.stdout
            finally:
                process.terminate()

    def pipes(self, verb: str, *rest: str) -> Pipes:
        """Start a command on pipes; its exit code comes on the status pipe."""
        process = subprocess.Popen(  # noqa: S603
            self._command(verb, *rest),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=_environment(),
        )
        ends = [
            os.dup(stream.fileno()) for stream in (process.stdin, process.stdout, process.stderr) if stream
        ]
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream:
                stream.close()
        status, report = os.pipe()

        def end() -> None:
            code = process.wait()
            with suppress(OSError):  # nobody waits any more
                os.write(report, b"%d" % (code if code >= 0 else 128 - code))
            os.close(report)

        threading.Thread(target=end, name=f"smolvm-{verb}", daemon=True).start()
        return Pipes(ends[0], ends[1], ends[2], status)

    def _command(self, verb: str, *rest: str) -> list[str]:
        self._program = self._program or find_program()
        return [self._program, "machine", verb, "--state-dir", str(self._state), *rest]


def _environment() -> dict[str, str]:
    return {
        name: value for name, value in os.environ.items() if name in _PASSED or not name.startswith("SMOLVM_")
    }


def _refusal(stderr: bytes, stdout: bytes) -> Refused:
    """Find the error line among notes; a command that failed in the guest has none."""
    for line in reversed(stderr.splitlines()):
        try:
            error = json.loads(line)["error"]
            return Refused(str(error["code"]), one_line(str(error["message"]).encode()))
        except (ValueError, TypeError, KeyError):
            continue
    return Refused("", one_line((stderr.strip() or stdout.strip())[-1000:]))
