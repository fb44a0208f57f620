"""The live table of a bottle, without a proxy around it."""

from __future__ import annotations

from pathlib import Path

from egress.contract import snapshot
from egress.policy.routes import Route
from egress.policy.table import RouteTable, Snapshot
from egress.proxy.config import Limits
from egress.proxy.state.bottle import BottleState


def put(directory: Path, version: int, *hosts: str) -> None:
    table = RouteTable(tuple(Route(host) for host in hosts), hosts)
    written = Snapshot("agent-a", version, table, "2030-01-31T12:00:00+00:00")
    (directory / "gate.yaml").write_text(snapshot.render_gate(written))
    (directory / "routes.yaml").write_text(snapshot.render_routes(written))


async def test_files_of_an_older_version_bring_no_withdrawn_route_back(tmp_path: Path) -> None:
    bottle = BottleState("agent-a", tmp_path, Limits())
    put(tmp_path, 3)
    assert (await bottle.reload()).version == 3
    put(tmp_path, 2, "withdrawn.example.com")
    ack = await bottle.reload()
    assert (ack.version, bottle.snapshot.table.routes) == (3, ())
    assert "older than the live one" in (ack.problem or "")
    put(tmp_path, 4, "new.example.com")
    assert ((await bottle.reload()).version, bottle.problem) == (4, None)
