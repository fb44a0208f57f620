"""A real Docker engine for tests: in a network namespace without a way out, with its own directories."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from tests.support.docker_images import python_image, shell_image
from tests.support.requirements import require
from tests.support.timeouts import wait_until

HINT = "apt-get install --no-install-recommends docker.io busybox-static, and run the tests as root"


class Engine:
    """Start, kill and start again; `close` leaves nothing of it behind."""

    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="bottle-dockerd-"))
        self.url = f"unix://{self.root}/docker.sock"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        arguments = ["--data-root", f"{self.root}/data", "--exec-root", f"{self.root}/exec"]
        arguments += ["-p", f"{self.root}/pid", "-H", self.url, "--storage-driver=overlay2"]
        arguments += ["--iptables=false", "--ip6tables=false", "--bridge=none"]
        arguments += ["--cgroup-parent", f"/{self.root.name}"]
        with (self.root / "log").open("ab") as log:
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "TERM", "unshare", "--net", "dockerd", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        wait_until(self._answers, what="the engine's start")

    def _answers(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise AssertionError(f"dockerd ended: {(self.root / 'log').read_text()[-2000:]}")
        with socket.socket(socket.AF_UNIX) as connection:  # the SDK leaves sockets open when it fails
            try:
                connection.connect(f"{self.root}/docker.sock")
                connection.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
                return b" 200 " in connection.recv(1024)
            except OSError:
                return False

    def kill(self) -> None:
        """As a crash does; the containers' processes live on for now."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        (self.root / "pid").unlink(missing_ok=True)
        _wait_for_the_end_of_containerd(self.root)

    def stop(self) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def close(self) -> None:
        if self._process is not None and self._process.poll() is not None:
            self.start()  # only an engine ends what a killed one left running
        self.stop()
        for pid in _processes_that_name(self.root):
            os.kill(pid, signal.SIGKILL)
        for line in reversed(Path("/proc/mounts").read_text().splitlines()):
            if line.split()[1].startswith(f"{self.root}/"):
                subprocess.run(["umount", "-l", line.split()[1]], check=False)
        for place in ("", "*/"):  # the second and the first version of control groups
            for group in Path("/sys/fs/cgroup").glob(f"{place}{self.root.name}"):
                group.rmdir()
        shutil.rmtree(self.root, ignore_errors=True)


def _processes_that_name(root: Path) -> list[int]:
    """Shims and their like: their arguments carry the engine's directory, which is nobody else's."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                arguments = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if f"{root}/".encode() in arguments:
                found.append(int(entry.name))
    return found


def _wait_for_the_end_of_containerd(root: Path) -> None:
    """It ends with its parent; a new engine that finds it dying would try to use it."""
    path = root / "exec" / "containerd" / "containerd.pid"
    deadline = time.monotonic() + 10
    while (
        path.exists() and Path(f"/proc/{path.read_text().strip()}").exists() and time.monotonic() < deadline
    ):
        time.sleep(0.05)


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    able = os.geteuid() == 0 and all(shutil.which(name) for name in ("dockerd", "unshare", "busybox"))
    require(able, "a Docker engine", HINT)
    running = Engine()
    try:
        running.start()
        client = docker.DockerClient(base_url=running.url, timeout=60)
        python_image(client)
        shell_image(client)
        client.close()
        yield running
    finally:
        running.close()


@pytest.fixture
def docker_host(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("DOCKER_HOST", engine.url)
    return engine.url
