"""A Python workspace's packages come from an index through the proxy, under the bottle's routes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.bottle_cli import Bottles
from tests.support.mcp_server_site import INDEX, WHEEL, Managed, PackageIndex
from tests.support.timeouts import wait_until

pytestmark = pytest.mark.process


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
    managed = started(bottles, "packages", routes=[route])
    assert managed.call("plain", "echo", a=1) == {"a": 1}, managed.known()
    assert f"/simple/{WHEEL}" in PackageIndex.fetched
    query = "select path from egress_trafficrecord where host = ? and verdict = 'allowed'"
    wait_until(
        lambda: f"/simple/{WHEEL}" in {row["path"] for row in bottles.rows(query, INDEX)}, what="the record"
    )


def test_without_a_route_it_fails_in_its_phase_and_says_why(bottles: Bottles) -> None:
    PackageIndex.fetched.clear()
    managed = started(bottles, "no-packages")
    error = managed.ask("plain", "tools/list")["error"]
    assert error["data"]["phase"] == "dep_install", error
    assert managed.state("plain")["stderr"]
    assert PackageIndex.fetched == []
