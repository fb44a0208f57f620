"""A Python workspace's packages come from an index through the proxy, under the bottle's routes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from botbottle.demo.internet import Site, small_internet
from tests.support.bottle_cli import Bottles
from tests.support.mcp_server_site import Managed
from tests.support.requirements import require
from tests.support.server import running_server
from tests.support.timeouts import wait_until
from tests.support.wheels import wheel_of

pytestmark = pytest.mark.process
INDEX = "index.example.com"
WHEEL = "dependency-1.0-py3-none-any.whl"


class Packages(Site):
    """A package index of one package."""

    files: ClassVar[dict[str, bytes]] = {}
    fetched: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.fetched.append(self.path)
        if self.path in self.files:
            self.answer(200, self.files[self.path], "text/html")
        else:
            self.answer(404, b"")


@pytest.fixture(scope="module")
def bottles(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bottles]:
    require(shutil.which("bwrap"), "bubblewrap", "apt-get install bubblewrap")
    root = tmp_path_factory.mktemp("packages")
    Packages.files["/simple/dependency/"] = f'<a href="/simple/{WHEEL}">{WHEEL}</a>'.encode()
    Packages.files[f"/simple/{WHEEL}"] = wheel_of(root, "dependency").read_bytes()
    with (
        small_internet(root, {INDEX: Packages}) as internet,
        running_server(
            root / "h", EGRESS_UPSTREAM_PROXY=internet.proxy_url, EGRESS_UPSTREAM_CA=str(internet.authority)
        ) as server,
    ):
        made = Bottles(server)
        yield made
        for line in json.loads(made.ok("ps", "--json")):
            made.ok("delete", line["slug"])


def started(bottles: Bottles, slug: str, **more: object) -> Managed:
    managed = Managed(bottles, slug)
    directory: Path = managed.stage(f"{slug}-code", "plain_server.py")
    (directory / "requirements.txt").write_text(f"--index-url https://{INDEX}/simple/\ndependency==1.0\n")
    server = directory / "plain_server.py"
    server.write_text("import dependency\n" + server.read_text())
    entry = {"command": "python", "args": ["plain_server.py"], "host_path": f"{slug}-code"}
    managed.start({"plain": entry}, **more)
    return managed


def test_packages_come_through_the_proxy(bottles: Bottles) -> None:
    route = {"host": INDEX, "methods": ["GET", "HEAD"], "path_allowlist": ["/simple"]}
    managed = started(bottles, "open", routes=[route])
    assert managed.call("plain", "echo", a=1) == {"a": 1}, managed.known()
    assert f"/simple/{WHEEL}" in Packages.fetched
    query = "select path from egress_trafficrecord where host = ? and verdict = 'allowed'"
    wait_until(
        lambda: f"/simple/{WHEEL}" in {row["path"] for row in bottles.rows(query, INDEX)}, what="the record"
    )


def test_without_a_route_it_fails_in_its_phase_and_says_why(bottles: Bottles) -> None:
    Packages.fetched.clear()
    managed = started(bottles, "closed")
    error = managed.ask("plain", "tools/list")["error"]
    assert error["data"]["phase"] == "dep_install", error
    assert managed.state("plain")["stderr"]
    assert Packages.fetched == []
