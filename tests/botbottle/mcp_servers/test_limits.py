"""A server that wants more than its limits is held, with all it forks; the other one and the bottle go on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from botbottle.backends.local import cgroups
from botbottle.core.plan_types import Limits
from botbottle.mcp_servers.limits import ServerLimits
from tests.support.bottle_cli import Bottles
from tests.support.mcp_server_site import Managed
from tests.support.timeouts import wait_until

pytestmark = pytest.mark.process
MOST, PROCESSES = 160, 20  # megabytes
WANTED = Limits(memory=MOST << 20, pids=PROCESSES, cpus=1)
TOGETHER = "memory, pids, cpus (all its processes together)"
EACH = "memory, pids, cpus (each process)"


def groups_can_be_made() -> bool:
    """As for a bottle's own limits, which is code of its own."""
    name = f"bot-bottle-probe-{os.getpid()}"
    placed = cgroups.place(name, WANTED)
    cgroups.remove(list(placed.cgroups))
    unified = any((Path(group) / "cgroup.controllers").exists() for group in placed.cgroups)
    return not placed.weaker and not placed.missing and not unified


def groups_of(slug: str) -> list[Path]:
    return [path for path in Path("/sys/fs/cgroup").rglob("bot-bottle-server-*") if f"-{slug}-" in path.name]


def started(bottles: Bottles, slug: str, **more: object) -> Managed:
    managed = Managed(bottles, slug)
    managed.stage("plain", "plain_server.py")
    managed.workspace.mkdir(parents=True)
    managed.workspace.chmod(0o777)  # where the tests run as root, the bottle does not
    plain = {"command": "python3", "args": ["plain_server.py"], "host_path": "plain"}
    greedy = plain | {"args": ["plain_server.py"], "memory": f"{MOST}m", "pids": PROCESSES, "cpus": 1}
    managed.start({"greedy": greedy, "other": plain}, **more)
    managed.wait("greedy", condition="running")
    return managed


def check(managed: Managed, *, together: bool) -> None:
    assert managed.state("greedy")["limits"] == (TOGETHER if together else EACH)
    assert managed.state("other")["limits"] == ""
    listed = managed.bottles.server.manage("servers", "list", managed.slug)
    assert f"limits: {TOGETHER if together else EACH}" in listed
    if together:
        assert 5 <= managed.call("greedy", "fork", count=60) < PROCESSES
        assert managed.call("greedy", "fork", count=6, megabytes=60) <= 2, (
            "each is small, together they are not"
        )
    assert managed.call("other", "fork", count=6, megabytes=60) == 6
    failed = managed.ask("greedy", "tools/call", name="eat", arguments={"megabytes": 2 * MOST})
    if together:
        assert failed["error"]["data"]["phase"] == "tool_call"
        managed.wait("greedy", condition="running", restarts=1, exit_code=137)
    else:
        managed.wait("greedy", condition="running")
    assert managed.call("greedy", "echo", again=1) == {"again": 1}
    assert managed.call("other", "eat", megabytes=2 * MOST) == (2 * MOST) << 20
    assert managed.known()["other"]["restarts"] == 0
    assert managed.bottles.ps(managed.slug)["state"] == "running"


@pytest.mark.parametrize("own", [{}, {"limits": {"memory": "2g", "pids": 200}}], ids=["bare", "limited"])
def test_in_a_local_bottle(bottles: Bottles, own: dict[str, object]) -> None:
    slug = f"greedy-{len(own)}"
    together = groups_can_be_made()
    managed = started(bottles, slug, **own)
    check(managed, together=together)
    assert len(groups_of(slug)) == (3 if together else 0)
    bottles.server.manage("servers", "stop", slug, "greedy")
    assert groups_of(slug) == []
    bottles.server.manage("servers", "start", slug, "greedy")
    managed.wait("greedy", condition="running")
    bottles.ok("stop", slug)
    wait_until(lambda: groups_of(slug) == [], what="the groups' removal")


def test_without_groups_each_process_is_limited_and_that_is_said() -> None:
    limits = ServerLimits("bot-bottle-server-none", WANTED)
    limits.enter(lambda: None)
    assert (limits.words, limits.of_each_process) == (EACH, WANTED)
    limits.leave()
    assert ServerLimits("bot-bottle-server-none", Limits()).words == ""
