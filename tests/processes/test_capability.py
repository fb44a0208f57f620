"""A new image, asked for from inside a bottle and approved: real server, real proxy, real Docker engine."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import unescape
from pathlib import Path
from typing import Any

import docker
import httpx
import pytest
import yaml
from websockets import Origin
from websockets.sync.client import connect

from botbottle.backends.accounts import sandbox_name
from botbottle.demo.internet import Site, small_internet
from tests.support.bottle_cli import Bottles, Ran
from tests.support.docker_engine import Engine, engine
from tests.support.docker_images import PYTHON_IMAGE, SHELL_IMAGE
from tests.support.requirements import require
from tests.support.server import running_server
from tests.support.site import command_of, post_form
from tests.support.timeouts import PATIENCE, wait_until

__all__ = ["engine"]
pytestmark = [pytest.mark.process, pytest.mark.docker]
TOOLS, CLOSED = "tools.example.com", "closed.example.com"
FETCH = "curl -ksf https://{host}/newtool -o /usr/bin/newtool"
CALL = """
import json, sys, urllib.request
ask = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": json.loads(sys.argv[1])}
request = urllib.request.Request("http://127.0.0.1:9100/mcp", json.dumps(ask).encode(), {
    "Content-Type": "application/json", "Accept": "application/json", "MCP-Protocol-Version": "2025-11-25"})
print(json.loads(urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request).read())
      ["result"]["content"][0]["text"])
"""


class Tools(Site):
    def do_GET(self) -> None:
        self.answer(200, b"#!/bin/sh\necho new tool\n")


@dataclass
class World(Bottles):
    client: docker.DockerClient
    pool: ThreadPoolExecutor
    waiting: Future[Ran] = field(init=False)  # the newest of the calls

    def bottle(self, slug: str, *, backend: str = "docker", **keys: Any) -> str:
        """Started with a workspace on a branch, with something not committed in it."""
        workspace = self.server.home.parent / f"{slug}-workspace"
        workspace.mkdir()
        for arguments in (
            ["init", "-q", "-b", "feature/x"],
            ["commit", "-q", "--allow-empty", "-m", "first"],
        ):
            identity = ["-c", "user.name=t", "-c", "user.email=t@example.com"]
            subprocess.run(["git", *identity, *arguments], cwd=workspace, check=True)
        (workspace / "draft").write_text("not committed\n")
        for path in (workspace, *workspace.rglob("*")):
            if backend == "docker":
                os.chown(path, 1000, 1000)
        content = {
            "backend": backend,
            "command": ["sleep", "1000"],
            "workspace": {"path": str(workspace)},
            "routes": [{"host": TOOLS}],
            **({"image": PYTHON_IMAGE} if backend == "docker" and "dockerfile" not in keys else {}),
            **keys,
        }
        self.manifest(slug, yaml.safe_dump(content))
        self.ok("start", slug)
        return slug

    def inside(self, slug: str, *command: str) -> str:
        return self.ok("exec", "-T", slug, "--", *command)

    def tool(self, slug: str, name: str, **arguments: Any) -> str:
        call = json.dumps({"name": name, "arguments": arguments})
        return self.inside(slug, "python3", "-c", CALL, call)

    def ask(self, slug: str, *lines: str, python: str = "python3", base: str = PYTHON_IMAGE) -> str:
        """From inside the bottle, as an agent does. The proposal's id, once it is in the queue."""
        text = "".join(f"{line}\n" for line in (f"FROM {base}", *lines))
        arguments = {"dockerfile": text, "justification": "the tests need it"}
        call = json.dumps({"name": "capability-block", "arguments": arguments})
        self.waiting = self.pool.submit(self.command, "exec", "-T", slug, "--", python, "-c", CALL, call)
        (asked,) = wait_until(lambda: self.server.pending(slug), what="the ask")
        return str(asked)

    def review(self, proposal: str) -> dict[str, Any]:
        """As an operator is shown it, by a process that has not looked before.

        An engine that is busy may answer too late for a page, which says so then.
        """

        def compared() -> dict[str, Any] | None:
            told = self.server.manage("proposals", "show", proposal, "--json")
            review: dict[str, Any] = json.loads(told)["review"]
            return None if review["notes"] else review

        return dict(wait_until(compared, what="the engine's answer"))

    def approve(self, proposal: str) -> None:
        self.server.manage("proposals", "approve", proposal, "--note", "Fine.")

    def rebuild(self, slug: str) -> dict[str, Any]:
        rows = self.rows(
            "select r.* from supervise_rebuild r join botbottle_bottle b on b.id = r.bottle_id"
            " where b.slug = ? order by r.id desc limit 1", slug,
        )  # fmt: skip
        return rows[0] if rows else {"phase": ""}

    def ended(self, slug: str) -> dict[str, Any]:
        def over() -> Any:
            row = self.rebuild(slug)
            return row if row["phase"] in {"live", "failed"} else None

        return dict(wait_until(over, seconds=240, what="the end of the rebuild"))

    def reached(self, slug: str, phase: str) -> None:
        wait_until(lambda: self.rebuild(slug)["phase"] == phase, what=phase)

    def container(self, slug: str) -> str:
        return str(self.client.containers.get(sandbox_name(self.server.home, slug)).id)

    def worker(self, slug: str) -> int:
        """The process at work. Another may have been started for it, finds that out, and ends."""
        wanted = ["rebuild", str(self.rebuild(slug)["id"])]

        def alone() -> list[int]:
            entries = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
            found = [pid for pid in entries if command_of(pid)[-2:] == wanted]
            return found if len(found) == 1 else []

        return int(wait_until(alone, what="one process")[0])

    def end(self, slug: str) -> None:
        self.waiting.result()
        self.ok("delete", slug)

    def containers(self) -> set[str]:
        return {each.name for each in self.client.containers.list(all=True, ignore_removed=True)}

    def steps(self, slug: str) -> list[str]:
        """The containers of a build: the one that has the network, and those that share it."""
        gate = sandbox_name(self.server.home, slug).replace("bot-bottle-", "bot-bottle-gate-", 1)
        found = self.client.containers.list(all=True, ignore_removed=True)
        shared = {f"container:{each.id}" for each in found if each.name == gate}
        return [
            each.name
            for each in found
            if each.name == gate or each.attrs["HostConfig"]["NetworkMode"] in shared
        ]

    @contextmanager
    def console(self) -> Iterator[httpx.Client]:
        url, password = self.server.console_url, self.server.password
        with httpx.Client(base_url=url, follow_redirects=True, timeout=PATIENCE, trust_env=False) as browser:
            post_form(browser, "/admin/login/", username="operator", password=password, next="/history/")
            yield browser

    def click(self, browser: httpx.Client, proposal: str, button: str) -> str:
        """One of the rebuild's buttons on the proposal's page, which must be there."""
        page = browser.get(f"/proposals/{proposal}/").text
        action = f"/proposals/{proposal}/rebuild/{button}"
        token = re.search(rf'action="{action}"[^>]*><input[^>]*value="([^"]+)"', page)
        assert token, button
        headers = {"Referer": f"{browser.base_url}", "Origin": str(browser.base_url).rstrip("/")}
        return browser.post(action, data={"csrfmiddlewaretoken": token[1]}, headers=headers).text

    def live_log(self, slug: str, until: str) -> str:
        """As an open page gets it, from the start of the log."""
        shown = {"rebuild": self.rebuild(slug)["id"], "offset": 0, "progress": ""}
        url, text = self.server.console_url, ""
        with self.console() as browser:
            cookies = "; ".join(f"{name}={value}" for name, value in browser.cookies.items())
        with connect(
            f"{url.replace('http', 'ws')}/ws/rebuild-log/",
            origin=Origin(url),
            additional_headers={"Cookie": cookies},
            proxy=None,
        ) as socket:
            while until not in text:
                socket.send(json.dumps(shown))
                told = json.loads(socket.recv(timeout=60))
                shown |= {key: told[key] for key in ("offset", "progress") if key in told}
                text += told.get("text", "")
        return text

    def log(self, slug: str) -> str:
        path = self.server.home / "bottles" / slug / "rebuilds" / f"{self.rebuild(slug)['id']}.log"
        return path.read_text()


def _short(image: Any) -> str:
    return str(image.id).removeprefix("sha256:")[:12]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, engine: Engine) -> Iterator[World]:
    root = tmp_path_factory.mktemp("capability")
    with (
        engine.client() as client,
        ThreadPoolExecutor() as pool,
        small_internet(root, {TOOLS: Tools, CLOSED: Tools}) as internet,
        running_server(
            root / "home",
            DOCKER_HOST=engine.url,
            EGRESS_UPSTREAM_PROXY=internet.proxy_url,
            EGRESS_UPSTREAM_CA=str(internet.authority),
            SUPERVISE_RESPONSE_TIMEOUT_SECONDS="1",
        ) as server,
    ):
        yield World(server, client, pool)
        home = server.home
    assert engine.containers_of(home) == [], "nothing is left behind"


@pytest.fixture(scope="module")
def kept(world: World) -> Iterator[str]:
    """A bottle for tests in which it goes on, whatever its image is by now."""
    slug = world.bottle("kept")
    yield slug
    world.end(slug)


def test_an_approved_binary_arrives_on_the_same_workspace_and_leaves_by_a_rollback(world: World) -> None:
    slug = world.bottle("grown")
    assert world.inside(slug, "cat", "/etc/bot-bottle/current-config/Dockerfile") == f"FROM {PYTHON_IMAGE}\n"
    old = world.container(slug)
    proposal = world.ask(slug, f"RUN {FETCH.format(host=TOOLS)} && busybox chmod 755 /usr/bin/newtool")
    world.approve(proposal)
    row = world.ended(slug)
    assert (row["phase"], row["problem"]) == ("live", ""), world.log(slug)

    assert world.container(slug) != old
    assert world.ps(slug)["state"] == "running"
    assert world.inside(slug, "newtool") == "new tool\n"
    assert world.inside(slug, "cat", "/workspace/draft", "/workspace/.git/HEAD").split("\n")[:2] == [
        "not committed", "ref: refs/heads/feature/x",
    ]  # fmt: skip
    assert json.loads(row["workspace"])["branch"] == "feature/x"
    shown = world.inside(slug, "cat", "/etc/bot-bottle/current-config/Dockerfile")
    assert "newtool" in shown
    labels = world.client.images.get(row["image"]).labels
    assert labels["bot-bottle.dockerfile"] == row["digest"]
    assert "The replacement is live" in world.tool(slug, "check-proposal", proposal_id=proposal)
    assert ("image replaced", "operator") in world.audited(slug)

    assert world.ok("rollback-image", slug) == f"{slug}: live\n"
    assert world.command("exec", "-T", slug, "--", "newtool").code == 127
    assert world.inside(slug, "cat", "/workspace/draft") == "not committed\n"
    assert world.inside(slug, "cat", "/etc/bot-bottle/current-config/Dockerfile") == f"FROM {PYTHON_IMAGE}\n"
    assert "gone back to the image before" in world.tool(slug, "check-proposal", proposal_id=proposal)
    again = world.command("rollback-image", slug)
    assert (again.code, "no rebuilt image" in again.error) == (1, True)
    world.ok("stop", slug)
    world.ok("start", slug)
    assert world.command("exec", "-T", slug, "--", "newtool").code == 127, "and it stays so"
    world.end(slug)


def test_a_tag_that_moved_is_flagged_before_the_yes(world: World, tmp_path: Path) -> None:
    """Already for the first change, of an image that the manifest's own Dockerfile made."""
    client = world.client
    python, shell = (client.images.get(name) for name in (PYTHON_IMAGE, SHELL_IMAGE))
    python.tag("base", "1")
    dockerfile = tmp_path / "Dockerfile"
    dockerfile.write_text("FROM base:1\nENV OWN=1\n")
    slug = world.bottle("moved", dockerfile=str(dockerfile))
    proposal = world.ask(slug, "RUN echo more > /etc/more", base="base:1")
    before = world.review(proposal)
    assert before["notes"] == [] and "moved tag" not in str(before)

    shell.tag("base", "1")
    flag = f"moved tag: base:1 is another image than the bottle's present one was built on: {_short(shell)}"
    flag += f", so far {_short(python)}"
    now = world.review(proposal)
    assert flag in now["warnings"] and flag in now["risk"]["reasons"]
    with pytest.raises(AssertionError, match="changed since you looked"):
        world.server.manage("proposals", "approve", proposal, "--digest", before["seen_digest"])
    with world.console() as browser:  # the web process may have an answer of half a minute ago
        for page in ("/", f"/proposals/{proposal}/"):
            wait_until(lambda page=page: flag in unescape(browser.get(page).text), what=page)
    python.tag("base", "1")
    assert world.review(proposal)["seen_digest"] == before["seen_digest"]
    world.approve(proposal)
    assert world.ended(slug)["phase"] == "live", world.log(slug)
    assert "moved tag" not in world.log(slug)
    world.waiting.result()

    # The next one, against the image that was rebuilt.
    proposal = world.ask(slug, "RUN echo yet more > /etc/more", base="base:1")
    assert world.review(proposal)["warnings"] == [
        "takes away what the present Dockerfile has: 'RUN echo more > /etc/more'"
    ]
    shell.tag("base", "1")
    assert flag in world.review(proposal)["warnings"]
    client.images.remove("base:1")
    missing = "the build would fail: line 1: the Docker engine has no image 'base:1'"
    assert world.review(proposal)["warnings"][0].startswith(missing)
    world.end(slug)


def test_an_image_that_was_removed_is_built_anew_from_the_approved_text(world: World, kept: str) -> None:
    slug = kept
    world.approve(world.ask(slug, "RUN echo approved > /etc/approved"))
    assert world.ended(slug)["phase"] == "live", world.log(slug)
    world.ok("rm", slug)
    refused = world.command("start", slug)
    assert (refused.code, "bottle rebuild" in refused.error) == (1, True), refused.error
    assert world.ok("rebuild", slug) == f"{slug}: live\n"
    world.ok("start", slug)
    assert world.inside(slug, "cat", "/etc/approved", "/workspace/draft") == "approved\nnot committed\n"


def test_a_failing_build_leaves_the_old_bottle_and_names_the_host_to_ask_for(world: World) -> None:
    slug = world.bottle("refused")
    old = world.container(slug)
    proposal = world.ask(slug, f"RUN {FETCH.format(host=CLOSED)}")
    assert "Not decided yet" in world.waiting.result().output
    world.approve(proposal)
    row = world.ended(slug)
    assert row["phase"] == "failed"
    assert "returned a non-zero code" in row["problem"]
    assert world.container(slug) == old
    assert world.inside(slug, "cat", "/workspace/draft") == "not committed\n"
    told = wait_until(
        lambda: (
            (text := world.tool(slug, "check-proposal", proposal_id=proposal)) and CLOSED in text and text
        ),
        what="the refusal's record",
    )
    assert "status: approved" in told and "Approved, but not live" in told
    assert f"refused {CLOSED}" in told and "Step 2/" in told
    # The host is asked for and opened; then the operator has the image built once more, and takes it back.
    world.tool(slug, "egress-block", host=CLOSED, justification="for the image")
    listed = world.server.manage("proposals", "list", "--bottle", slug, "--json")
    world.approve(json.loads(listed)[0]["id"])
    with world.console() as browser:
        page = browser.get(f"/proposals/{proposal}/").text
        assert "Step 2/" in page and CLOSED in page and "image built: failed" in page
        assert f"/draft/?bottle={slug}&amp;host={CLOSED}" in page
        assert "is built again" in world.click(browser, proposal, "again")
        row = world.ended(slug)
        assert (row["phase"], row["problem"]) == ("live", ""), world.log(slug)
        assert world.inside(slug, "cat", "/usr/bin/newtool") == "#!/bin/sh\necho new tool\n"
        assert "goes back" in world.click(browser, proposal, "roll-back")
        row = world.ended(slug)
        assert (row["phase"], row["undoes_id"] is None) == ("live", False)
        assert "Another image is in force" in browser.get(f"/proposals/{proposal}/rebuild/").text
    assert world.command("exec", "-T", slug, "--", "cat", "/usr/bin/newtool").code == 1
    world.end(slug)


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        (("RUN rm /usr/local/bin/python3",), "has no python3"),
        (("RUN rm /bin/sleep",), "the command sleep: it is not installed"),
    ],
)
def test_a_failing_canary_leaves_the_old_bottle(
    world: World, kept: str, lines: tuple[str, ...], sentence: str
) -> None:
    slug = kept
    old = world.container(slug)
    world.approve(proposal := world.ask(slug, *lines))
    row = world.ended(slug)
    assert row["phase"] == "failed"
    assert sentence in row["problem"]
    assert world.container(slug) == old
    assert sentence in world.tool(slug, "check-proposal", proposal_id=proposal)


def test_a_worker_killed_in_mid_build_leaves_the_old_bottle(world: World, kept: str) -> None:
    slug = kept
    old = world.container(slug)
    world.approve(proposal := world.ask(slug, "RUN echo begun && sleep 600"))
    world.reached(slug, "building")
    assert "begun\n" in world.live_log(slug, until="begun\n"), "while it is built"
    assert world.rebuild(slug)["phase"] == "building"
    steps = set(world.steps(slug))
    assert len(steps) == 2
    assert "step 2 of 4" in world.tool(slug, "check-proposal", proposal_id=proposal)
    os.kill(world.worker(slug), signal.SIGKILL)
    row = world.ended(slug)
    assert (row["phase"], "interrupted" in row["problem"]) == ("failed", True)
    assert world.container(slug) == old
    assert world.ps(slug)["state"] == "running"
    wait_until(lambda: not steps & world.containers(), what="the end of the build's steps")
    assert "interrupted" in world.tool(slug, "check-proposal", proposal_id=proposal)


def test_a_local_bottle_gets_a_root_filesystem_of_its_own_and_goes_back_to_the_hosts(world: World) -> None:
    require(shutil.which("bwrap"), "bubblewrap", "apt-get install bubblewrap")
    slug = world.bottle("local", backend="local")
    assert world.command("exec", "-T", slug, "--", "newtool").code == 127
    made = "printf '#!/bin/sh\\necho new tool\\n' > /usr/bin/newtool && busybox chmod 755 /usr/bin/newtool"
    world.client.images.get(PYTHON_IMAGE).tag("rootfs", "1")
    python = str(Path(sys.base_prefix) / "bin" / "python3")
    proposal = world.ask(slug, f"RUN {made}", python=python, base="rootfs:1")
    world.approve(proposal)
    row = world.ended(slug)
    assert (row["phase"], row["problem"]) == ("live", ""), world.log(slug)
    assert Path(row["image"]).parent == world.server.home / "bottles" / slug
    assert world.inside(slug, "newtool") == "new tool\n"
    assert world.inside(slug, "cat", "/workspace/draft") == "not committed\n"
    workspace = json.loads(row["workspace"])  # git is a program of this host
    assert (workspace["branch"], workspace["changed"]) == ("feature/x", ["draft"])
    kept = world.server.home / "bottles" / slug / "rebuilds" / f"{row['id']}-changes.tar.gz"
    with tarfile.open(kept) as archive:
        assert archive.getnames() == ["draft"]
    assert "The replacement is live" in world.tool(slug, "check-proposal", proposal_id=proposal)
    world.waiting.result()
    second = world.ask(slug, "RUN true", base="rootfs:1")
    assert "moved tag" not in str(world.review(second))
    world.client.images.get(SHELL_IMAGE).tag("rootfs", "1")
    sources = (Path(row["image"]).with_name(f".{Path(row['image']).name}.sources")).read_text()
    warnings = world.review(second)["warnings"]
    assert warnings[0].startswith("moved tag: rootfs:1 "), (warnings, sources)
    world.client.images.remove("rootfs:1")
    assert world.ok("rollback-image", slug) == f"{slug}: live\n"
    assert world.command("exec", "-T", slug, "--", "newtool").code == 127
    world.end(slug)
