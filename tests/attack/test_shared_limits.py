"""A bottle that takes all that the kernel counts for the operator's account, which the proxy shares.

As an ordinary user, whose bottles run under the same uid; root's would too, but root is stopped by less.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest

from botbottle.core.files import write_atomically
from botbottle.core.interpreter import host_interpreter
from botbottle.core.plan_types import (
    HOME_INSIDE,
    SOCKETS_INSIDE,
    WORKSPACE_INSIDE,
    Limits,
    Mount,
    Plan,
    Variable,
)
from botbottle.launch import plan_cache
from tests.support import PROGRAMS, ROOT, proxy_harness
from tests.support.proxy_harness import USUAL_ROUTES, Client, Harness, get, numbered, running_lab
from tests.support.requirements import require
from tests.support.server import stop
from tests.support.timeouts import PATIENCE, wait_until

pytestmark = pytest.mark.process

UID, SUBORDINATE = 64123, 164123
ASKED = 10
EATER = (PROGRAMS / "eat_shared_limits.py").read_text()
HOST, PATH = "api.example.com", "/allowed/x"
REQUEST = f"""
import http.client
connection = http.client.HTTPConnection("127.0.0.1", 9101, timeout={PATIENCE})
connection.request("GET", "http://{HOST}{PATH}")
print(connection.getresponse().status)
"""
AS_USER = (sys.executable, str(PROGRAMS / "as_ordinary_user.py"), str(UID))


@pytest.fixture(scope="module")
def user() -> None:
    require(os.geteuid() == 0, "root, which may become another user,", "run the tests as root")
    require(shutil.which("bwrap"), "bubblewrap", "apt-get install bubblewrap")


def new_home() -> Path:
    """Short, since bottles bind sockets in it, and the user's."""
    home = Path(tempfile.mkdtemp(prefix="bb-"))
    for slug in ("agent-a", "agent-b"):
        for name in ("sockets", "current-config", "ca", "workspace"):
            (home / "bottles" / slug / name).mkdir(parents=True)
    for name in ("names.json", "stand-ins.json", "asked.txt", "dialled.txt"):
        (home / name).touch()
    (home / "uid-maps").mkdir()
    (home / "subuid").write_text(f"{UID}:{SUBORDINATE}:1\n")
    for path in (home, *home.rglob("*")):
        os.chown(path, UID, UID)
    return home


@contextmanager
def lab_of_the_user(**variables: str) -> Iterator[Harness]:
    home = new_home()

    def write(path: Path, text: str) -> None:
        write_atomically(path, text)
        os.chown(path, UID, UID)

    try:
        with (
            patch.object(proxy_harness, "write_atomically", write),
            running_lab(home, inside=AS_USER, EGRESS_PROCESSES="2", **variables) as lab,
        ):
            for slug in ("agent-a", "agent-b"):
                lab.publish(slug, USUAL_ROUTES)
            yield lab
    finally:
        shutil.rmtree(home)


@contextmanager
def uid_maps_written(requests: Path) -> Iterator[None]:
    """What newuidmap does, for as long as the stand-in may ask."""
    ended = threading.Event()

    def serve() -> None:
        while not ended.wait(0.01):
            for asked in requests.glob("*.asked"):
                pid, inside, outside, count = asked.read_text().split()
                Path(f"/proc/{pid}/uid_map").write_text(f"{inside} {outside} {count}\n")
                asked.rename(asked.with_suffix(".done"))

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@pytest.fixture(scope="module")
def apart(user: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    """Where the host has a subordinate uid for the user."""
    requests = Path(tempfile.mkdtemp(prefix="bb-"))
    os.chown(requests, UID, UID)
    ranges = requests / "subuid"
    ranges.write_text(f"{UID}:{SUBORDINATE}:1\n")
    try:
        with (
            uid_maps_written(requests),
            lab_of_the_user(
                PATH=f"{PROGRAMS}:{os.environ['PATH']}", UID_MAPS=str(requests), SUBUID_FILE=str(ranges)
            ) as lab,
        ):
            yield lab
    finally:
        shutil.rmtree(requests)


@pytest.fixture(scope="module")
def together(user: None) -> Iterator[Harness]:
    """Where it has none."""
    with lab_of_the_user() as lab:
        yield lab


def begin(lab: Harness, slug: str, program: str, limits: Limits = Limits()) -> subprocess.Popen[str]:  # noqa: B008
    """A bottle in the foreground whose agent is this program."""
    directory = lab.home / "bottles" / slug
    mounts = (
        Mount(str(directory / "workspace"), WORKSPACE_INSIDE, True),
        Mount(str(directory / "sockets"), SOCKETS_INSIDE),
    )
    plan = Plan(
        slug, "local", str(directory), command=(host_interpreter(), "-I", "-S", "-c", program),
        variables={"HOME": Variable(HOME_INSIDE)}, mounts=mounts, limits=limits,
    )  # fmt: skip
    written = lab.home / f"{slug}.json"
    written.write_text(plan_cache.to_json(plan))
    return subprocess.Popen(
        verb(lab, "run", str(written)), cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def verb(lab: Harness, *words: str) -> list[str]:
    return [*AS_USER, sys.executable, str(PROGRAMS / "local_backend.py"), str(lab.home), *words]


@contextmanager
def everything_taken(lab: Harness) -> Iterator[dict[str, int]]:
    """While one bottle has it all."""
    eater = begin(lab, "agent-a", EATER, Limits(pids=64))
    assert eater.stdout is not None
    try:
        line = eater.stdout.readline()
        assert line.startswith("{"), line + eater.stdout.read()
        yield json.loads(line)
        subprocess.run(verb(lab, "stop", "agent-a"), cwd=ROOT, timeout=PATIENCE, check=True)
    finally:
        stop(eater, PATIENCE)
        eater.stdout.close()


def answered(lab: Harness, slug: str) -> int:
    """0 when the connection is refused, or ended without an answer."""
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(str(lab.home / "bottles" / slug / "sockets" / "proxy.sock"))
            return Client(connection).ask(get(f"http://{HOST}{PATH}", HOST)).status
        except OSError:
            return 0


def test_another_bottle_is_served_while_one_has_taken_all_that_is_shared(
    apart: Harness, together: Harness
) -> None:
    before = {lab: numbered(lab.process.pid) for lab in (apart, together)}
    with everything_taken(apart) as taken:
        assert taken["watches"] > 100_000, taken
        assert taken["processes"] < 64, taken
        other = begin(apart, "agent-b", REQUEST)
        assert other.communicate(timeout=PATIENCE)[0] == "200\n"
        # One that is started anew has to be watched for too.
        os.kill(before[apart][0], signal.SIGKILL)
        wait_until(lambda: answered(apart, "agent-a") == 200, what="the return")
        # Where nothing is set apart connections are refused, one by one.
        assert [answered(together, "agent-a") for _ in range(ASKED)] == [0] * ASKED
        assert numbered(together.process.pid) == before[together]
    assert numbered(apart.process.pid)[1] == before[apart][1]
    wait_until(lambda: answered(together, "agent-a") == 200, what="the end of the shortage")
    assert numbered(together.process.pid) == before[together], together.log()
    assert "A bottle may have used up" in together.log()
