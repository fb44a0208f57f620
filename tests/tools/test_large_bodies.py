"""Far more each way than may be kept, while the proxy's memory stays where it was."""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path

import pytest

from tests.support.timeouts import PATIENCE
from tests.support.tool_env import BARE, INSPECTED, Bottle
from tests.support.tool_upstreams import generated

pytestmark = [pytest.mark.process, pytest.mark.tools]
MOST_GROWTH = 64 * 1024  # KB
SIZE = 3 * MOST_GROWTH * 1024  # more than every buffer and limit, and than what may be kept


class Memory:
    """The highest that a process's resident memory rose, counted from now."""

    def __init__(self, process: int) -> None:
        self._folder = Path(f"/proc/{process}")
        (self._folder / "clear_refs").write_text("5")  # forget the peak so far
        self._before = self._read("VmRSS")

    def growth(self) -> int:
        return self._read("VmHWM") - self._before

    def _read(self, name: str) -> int:
        lines = (self._folder / "status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith(name)).split()[1])


@pytest.fixture(autouse=True)
def warm(bottle: Bottle, host: str) -> None:
    """What a first connection needs once is in place."""
    done = bottle.run("curl", "--silent", "--show-error", f"https://{host}/echo/allowed")
    assert done.code == 0, done.err


@pytest.mark.parametrize("host", [INSPECTED, BARE])
def test_a_large_body_comes_down_whole(bottle: Bottle, host: str) -> None:
    memory = Memory(bottle.workshop.lab.process.pid)
    digest = hashlib.sha256()
    with bottle.start("curl", "--silent", "--show-error", f"https://{host}/download/{SIZE}") as curl:
        assert curl.stdout is not None
        while block := curl.stdout.read(1 << 20):
            digest.update(block)
        _, errors = curl.communicate(timeout=PATIENCE)
    assert (curl.returncode, errors) == (0, b"")
    assert digest.hexdigest() == digest_of_generated()
    assert memory.growth() < MOST_GROWTH


@pytest.mark.parametrize(("host", "framing"), [(INSPECTED, "chunked"), (INSPECTED, "sized"), (BARE, "sized")])
def test_a_large_body_goes_up_whole(bottle: Bottle, host: str, framing: str) -> None:
    memory = Memory(bottle.workshop.lab.process.pid)
    length = ["-H", f"Content-Length: {SIZE}", "-H", "Transfer-Encoding:"] if framing == "sized" else []
    command = ["curl", "--silent", "--show-error", "--upload-file", "-", *length, f"https://{host}/upload"]
    with bottle.start(*command, stdin=subprocess.PIPE) as curl:
        assert curl.stdin is not None
        for block in generated(SIZE):
            curl.stdin.write(block)
        out, errors = curl.communicate(timeout=PATIENCE)
    assert (curl.returncode, errors) == (0, b"")
    assert json.loads(out) == {"size": SIZE, "sha256": digest_of_generated()}
    assert memory.growth() < MOST_GROWTH


def digest_of_generated() -> str:
    digest = hashlib.sha256()
    for block in generated(SIZE):
        digest.update(block)
    return digest.hexdigest()
