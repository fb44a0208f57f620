"""A bottle in a container while its engine is killed: what is said of it stays true. A real engine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.bottle_cli import Bottles, is_gone
from tests.support.docker_engine import OwnEngine, own_engine
from tests.support.docker_images import PYTHON_IMAGE
from tests.support.server import running_server
from tests.support.timeouts import wait_until

__all__ = ["own_engine"]
pytestmark = [pytest.mark.process, pytest.mark.docker]
ASK_THE_AGENT_PLANE = (
    "import urllib.request; assert urllib.request.urlopen('http://127.0.0.1:9100/health').read() == b'ok'"
)
MANIFEST = f"backend: docker\nimage: {PYTHON_IMAGE}\ncommand: [sleep, '1000']\n"


@pytest.fixture(scope="module")
def bottles(own_engine: OwnEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bottles]:
    with running_server(tmp_path_factory.mktemp("boxed") / "h", DOCKER_HOST=own_engine.url) as server:
        wait_until(lambda: "console  http://" in server.log(), what="the start")
        yield Bottles(server)


def test_a_container_lives_through_the_record_and_its_engines_crash(
    bottles: Bottles,
    own_engine: OwnEngine,
) -> None:
    bottles.manifest("boxed", MANIFEST)
    assert "boxed is running" in bottles.ok("start", "boxed")
    assert bottles.command("exec", "boxed", "--", "sh", "-c", "exit 7").code == 7
    assert bottles.command("exec", "boxed", "--", "python3", "-c", ASK_THE_AGENT_PLANE).code == 0
    assert bottles.command("exec", "boxed", "--", "touch", "/workspace/a-file").code == 0
    own_engine.kill()
    try:
        line = bottles.ps("boxed")
        assert (line["state"], bool(line["backend_problem"])) == ("running", True), "the last known, and why"
        refused = bottles.command("stop", "boxed")
        assert refused.code == 1 and "Traceback" not in refused.error
    finally:
        own_engine.start()
    wait_until(lambda: bottles.ps("boxed")["backend_problem"] == "", what="the engine's answer")
    (container,) = own_engine.containers_of(bottles.server.home)
    is_running, pid = container.status == "running", int(container.attrs["State"]["Pid"] or 0)
    assert bottles.ps("boxed")["state"] == ("running" if is_running else "stopped")
    bottles.ok("delete", "boxed")
    assert own_engine.containers_of(bottles.server.home) == []
    assert not pid or is_gone(pid)


def test_what_an_image_that_has_yet_to_be_built_says_to_its_agent_is_merged(
    bottles: Bottles,
    own_engine: OwnEngine,
    tmp_path: Path,
) -> None:
    dockerfile = tmp_path / "context" / "Dockerfile"
    dockerfile.parent.mkdir()
    (dockerfile.parent / "claude.json").write_text('{"theme": "dark"}')
    dockerfile.write_text(f"FROM {PYTHON_IMAGE}\nCOPY claude.json /home/agent/.claude.json\n")
    text = f"backend: docker\ndockerfile: {dockerfile}\nagent: claude\ncommand: [sleep, '1000']\n"
    bottles.manifest("built", text)
    assert "COPY claude.json" in bottles.command("start", "built").error
    printed = bottles.ok("exec", "built", "--", "cat", "/home/agent/.claude.json")
    assert json.loads(printed)["theme"] == "dark"
    assert "supervise" in json.loads(printed)["mcpServers"]
    bottles.ok("stop", "built")
    command = ("sh", "-c", "grep -c dark /home/agent/.claude.json")
    assert bottles.command("run", "built", "--", *command).output.strip() == "1"
    dockerfile.write_text(f"FROM {PYTHON_IMAGE}\nRUN false\n")
    assert bottles.command("run", "built", "--", *command).code == 1
    assert "not built" in bottles.ps("built")["problem"]
    bottles.ok("delete", "built")
    assert own_engine.containers_of(bottles.server.home) == []


def test_a_container_whose_record_ended_while_the_engine_was_away_is_removed(
    bottles: Bottles,
    own_engine: OwnEngine,
) -> None:
    bottles.manifest("left", MANIFEST)
    bottles.ok("start", "left")
    own_engine.kill()
    try:
        bottles.ok("delete", "left")
        assert "left" not in bottles.ok("ps")
    finally:
        own_engine.start()
    wait_until(lambda: own_engine.containers_of(bottles.server.home) == [], what="the orphan's end")
    wait_until(lambda: bottles.audited("left")[-1] == ("orphan removed", "bot-bottle"), what="its record")
