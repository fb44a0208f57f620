"""Snapshot files load back to what was written, or not at all."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from egress.contract.snapshot import load, render_gate, render_routes
from egress.policy.errors import BadSnapshot
from egress.policy.routes import Auth, Route
from egress.policy.table import RouteTable, Snapshot
from tests.support.strategies import tables

TABLE = RouteTable(
    (Route("a.com", ("/x",), auth=Auth("Bearer", "TOKEN")), Route("*.b.com")), ("a.com", "*.b.com")
)
SNAPSHOT = Snapshot("blue-whale", 7, TABLE, "2030-01-01T12:00:00+00:00")
ROUTES, GATE = render_routes(SNAPSHOT), render_gate(SNAPSHOT)

slugs = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?", fullmatch=True) | st.sampled_from(
    ["on", "null", "1e3", "~"]
)


@given(tables, slugs, st.integers(0, 2**40))
def test_what_is_rendered_loads_back(table: RouteTable, bottle: str, version: int) -> None:
    snapshot = Snapshot(bottle, version, table, "2030-01-01T12:00:00Z")
    assert load(render_routes(snapshot), render_gate(snapshot)) == snapshot


def test_the_files_read_as_agreed() -> None:
    routes, gate = yaml.safe_load(ROUTES), yaml.safe_load(GATE)
    assert {key: routes[key] for key in ("version", "bottle", "table_version")} == {
        "version": 1,
        "bottle": "blue-whale",
        "table_version": 7,
    }
    assert [route["host"] for route in routes["routes"]] == ["*.b.com", "a.com"]
    assert gate["hosts"] == ["*.b.com", "a.com"]
    assert "hosts" not in routes
    assert "routes" not in gate


def test_a_comment_or_other_layout_does_no_harm() -> None:
    assert (
        load("# by hand\n" + ROUTES, yaml.safe_dump(yaml.safe_load(GATE), default_flow_style=True))
        == SNAPSHOT
    )


@given(st.integers(0, len(ROUTES) - 2))
def test_a_torn_file_never_loads(length: int) -> None:
    with pytest.raises(BadSnapshot):
        load(ROUTES[:length], GATE)


@pytest.mark.parametrize(
    ("routes", "because"),
    [
        ("", "empty or not a mapping"),
        ("[]", "empty or not a mapping"),
        ("a: [", "not valid YAML"),
        ("a: b\0", "not valid YAML"),
        (ROUTES + "---\na: b\n", "not valid YAML"),
        (ROUTES.replace("/x", "/y"), "does not match its digest"),
        (ROUTES.replace("TOKEN", "OTHER"), "does not match its digest"),
        (ROUTES.replace("blue-whale", "red-whale"), "does not match its digest"),
        (ROUTES.replace("sha256:", "sha256:0"), "does not match its digest"),
        (ROUTES.replace("version: 1\n", "version: 2\n", 1), "has format version 2"),
        (ROUTES.replace("version: 1\n", "version: true\n", 1), "has format version True"),
        (ROUTES.replace("table_version: 7", "table_version: seven"), "table_version must be a whole number"),
        (ROUTES.replace("table_version: 7", "table_version: true"), "table_version must be a whole number"),
        (ROUTES.replace("table_version: 7\n", ""), "lacks table_version"),
        (ROUTES.replace("bottle: blue-whale", "bottle: 5"), "bottle must be a name"),
        (ROUTES.replace("'2030-01-01T12:00:00+00:00'", "yesterday"), "written_at must be a time"),
        (ROUTES.replace("'2030-01-01T12:00:00+00:00'", "2030-01-01 12:00:00"), "written_at must be a time"),
        (ROUTES + "extra: 1\n", "unknown key 'extra'"),
        (ROUTES + "bottle: blue-whale\n", "stands twice"),
        (ROUTES.replace("- host: a.com", "- host: a.com\n  host: b.com"), "stands twice"),
        (ROUTES + "1: x\n", "is not text"),
        (ROUTES.replace("bottle: blue-whale", "bottle: &a blue-whale"), "anchors"),
        ("a: &a [x, x]\nb: [*a, *a]\n", "anchors"),
        ("a: !!python/object/apply:os.getcwd []\n", "tags"),
        ("a: !!binary aGk=\n", "tags"),
        ("a: " + "[" * 100_000, "nested too deeply"),
        ("a: " + "{a: " * 100_000, "nested too deeply"),
        ("#" * (9 * 1024 * 1024), "larger than"),
        (ROUTES.partition("routes:")[0] + "routes: {}\n", "routes must be a list"),
        (ROUTES.replace("path_allowlist: []", "path_allowlist: [.nan]"), "not plain data"),
        (ROUTES.replace("path_allowlist: []", "path_allowlist: [2030-01-01]"), "not plain data"),
        (GATE, "unknown key 'hosts'"),
    ],
)
def test_a_bad_routes_file_is_refused_whole(routes: str, because: str) -> None:
    with pytest.raises(BadSnapshot, match=because):
        load(routes, GATE)


@pytest.mark.parametrize(
    "other",
    [
        Snapshot("blue-whale", 8, TABLE, SNAPSHOT.written_at),
        Snapshot("red-whale", 7, TABLE, SNAPSHOT.written_at),
        Snapshot("blue-whale", 7, TABLE, "2031-01-01T12:00:00+00:00"),
    ],
)
def test_files_of_two_snapshots_do_not_load_together(other: Snapshot) -> None:
    with pytest.raises(BadSnapshot, match=r"routes.yaml and gate.yaml differ"):
        load(render_routes(other), GATE)


def test_a_well_signed_but_bad_table_is_refused() -> None:
    class Forged(RouteTable):
        def as_dict(self) -> dict[str, object]:
            return {"routes": [{"host": "127.0.0.1"}], "gate_hosts": []}

    forged = Snapshot("b", 1, Forged(), SNAPSHOT.written_at)
    with pytest.raises(BadSnapshot, match=r"bad table: host '127.0.0.1' is an IP address"):
        load(render_routes(forged), render_gate(forged))


@pytest.mark.parametrize(
    "snapshot",
    [
        Snapshot("", 1, TABLE, SNAPSHOT.written_at),
        Snapshot("b", -1, TABLE, SNAPSHOT.written_at),
        Snapshot("b", 1, TABLE, "now"),
    ],
)
def test_it_renders_nothing_that_would_not_load(snapshot: Snapshot) -> None:
    with pytest.raises(BadSnapshot):
        render_routes(snapshot)


def test_a_padded_snapshot_loads() -> None:
    assert load(ROUTES + "\n" * 500, GATE + "\n" * 500) == SNAPSHOT
