"""A real Docker engine for tests: in a network namespace without a way out, with its own directories.

There is one for all workers of a test run (`shared_engine.py` keeps it), so nobody has it alone:
names of bottles, containers and tags of images are a test's own, and what a test says about containers it
says about those of its own home, which carry the label `bot-bottle.home` (`containers_of`). A test that kills
the engine, or says something about all that is in it, takes `own_engine`.
"""

from __future__ import annotations

import errno
import functools
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import docker
import pytest
from docker.models.containers import Container

from botbottle.backends.accounts import HOME_LABEL, home_mark
from tests.support.docker_images import python_image, shell_image
from tests.support.requirements import require
from tests.support.server import is_running
from tests.support.timeouts import wait_until

HINT = "apt-get install --no-install-recommends docker.io busybox-static, and run the tests as root"


class Engine:
    """Where it is."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.url = f"unix://{root}/docker.sock"

    @contextmanager
    def client(self) -> Iterator[docker.DockerClient]:
        client = docker.DockerClient(base_url=self.url, timeout=120)
        try:
            yield client
        finally:
            client.close()

    def containers_of(self, home: Path) -> list[Container]:
        """Those of one bot-bottle, whether they run or not."""
        with self.client() as client:
            filters = {"label": f"{HOME_LABEL}={home_mark(home)}"}
            return list(client.containers.list(all=True, filters=filters, ignore_removed=True))


class OwnEngine(Engine):
    """Start, kill and start again; `close` leaves nothing of it behind."""

    def __init__(self, root: Path | None = None) -> None:
        super().__init__(root or Path(tempfile.mkdtemp(prefix="bottle-dockerd-")))
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

    def make_images(self) -> None:
        with self.client() as client:
            python_image(client)
            shell_image(client)

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
            with suppress(ProcessLookupError):  # a shim ends by itself, too
                os.kill(pid, signal.SIGKILL)
        for line in reversed(Path("/proc/mounts").read_text().splitlines()):
            if line.split()[1].startswith(f"{self.root}/"):
                subprocess.run(["umount", "-l", line.split()[1]], check=False)
        for place in ("", "*/"):  # the second and the first version of control groups
            for group in Path("/sys/fs/cgroup").glob(f"{place}{self.root.name}"):
                wait_until(functools.partial(_is_removed, group), what=f"the end of {group}")
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
    """It ends with its parent; a new engine that finds it dying, or dead and not yet buried, would use it."""
    path = root / "exec" / "containerd" / "containerd.pid"
    if path.exists():
        pid = int(path.read_text())
        wait_until(lambda: not is_running(pid), what="the end of containerd")
        path.unlink()


def _is_removed(group: Path) -> bool:
    """A control group is busy until the last of its processes has been buried."""
    try:
        group.rmdir()
    except OSError as error:
        return error.errno == errno.ENOENT
    return True


def _require_an_engine() -> None:
    able = os.geteuid() == 0 and all(shutil.which(name) for name in ("dockerd", "unshare", "busybox"))
    require(able, "a Docker engine", HINT)


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """The one of the whole run."""
    from tests.support.shared_engine import in_use  # which imports this module

    _require_an_engine()
    base = tmp_path_factory.getbasetemp()
    with in_use(base.parent if base.name.startswith("popen-gw") else base) as root:
        yield Engine(root)


@pytest.fixture(scope="module")
def own_engine() -> Iterator[OwnEngine]:
    """For the tests of one file that kill it."""
    _require_an_engine()
    running = OwnEngine()
    try:
        running.start()
        running.make_images()
        yield running
    finally:
        running.close()


@pytest.fixture
def docker_host(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("DOCKER_HOST", engine.url)
    return engine.url
