"""Merging an ask: never less reach, the same twice as once, and all an operator must know is said."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given

from egress.policy.asks import parse_egress_ask
from egress.policy.decide import Request, decide
from egress.policy.errors import BadRoute
from egress.policy.hostnames import pattern_matches
from egress.policy.merge import Merge, RouteChange, diff_tables, merge_gate_host, merge_route, takes_away
from egress.policy.paths import prefix_allows
from egress.policy.routes import Auth, Dlp, Lease, Route
from egress.policy.table import RouteTable, Snapshot
from tests.support.strategies import NOW, PATTERNS, asks, requests, tables

HOUR = timedelta(hours=1)


def merged(ask: dict[str, Any], *routes: Route, operator: bool = False) -> Merge:
    table = RouteTable(routes, tuple(route.host for route in routes))
    return merge_route(table, parse_egress_ask(ask), now=NOW, operator=operator)


def allows(table: RouteTable, request: Request) -> bool:
    return decide(request, Snapshot("b", 1, table, ""), now=NOW).allowed


@given(tables, asks)
def test_merging_twice_is_merging_once(table: RouteTable, ask: dict[str, Any]) -> None:
    once = merge_route(table, ask, now=NOW)
    twice = merge_route(once.table, ask, now=NOW)
    assert twice.table == once.table
    assert not twice.changed


@given(tables, asks, requests)
def test_merging_never_takes_reach_away(table: RouteTable, ask: dict[str, Any], request_: Request) -> None:
    for request in (request_, request_._replace(scheme="http", port=80)):
        if allows(table, request):
            assert allows(merge_route(table, ask, now=NOW).table, request)


@given(tables, asks, requests)
def test_what_was_asked_for_is_reachable(table: RouteTable, ask: dict[str, Any], request: Request) -> None:
    after = merge_route(table, ask, now=NOW).table
    asked = pattern_matches(ask["host"], request.host)
    asked &= request.method in ask.get("methods", [request.method])
    asked &= any(prefix_allows(prefix, request.path) for prefix in ask.get("path_allowlist", ["/"]))
    decider = after.live_route(request.host, NOW)
    if (
        asked
        and decider
        and decider.host in {ask["host"], *(p for p in PATTERNS if pattern_matches(p, ask["host"]))}
    ):
        assert allows(after, request)


@given(tables, asks)
def test_the_words_agree_with_the_change(table: RouteTable, ask: dict[str, Any]) -> None:
    merge = merge_route(table, ask, now=NOW)
    assert merge.changed is (merge.table != table)
    assert merge.effects[0].startswith("nothing changes") is (not merge.changed)
    assert bool(diff_tables(table, merge.table)) is merge.changed
    assert merge.granted["host"] == ask["host"]


@given(tables, asks)
def test_an_agent_changes_no_credential_of_a_reachable_host(table: RouteTable, ask: dict[str, Any]) -> None:
    before = table.live_route(ask["host"], NOW)
    after = merge_route(table, ask, now=NOW).table.live_route(ask["host"], NOW)
    assert after is not None
    if before is not None:
        assert (after.auth, after.dlp, after.pinned_addresses) == (
            before.auth,
            before.dlp,
            before.pinned_addresses,
        )


def test_a_new_host_is_described_with_its_credential_and_end() -> None:
    ask = {
        "host": "api.github.com",
        "path_allowlist": ["/repos/acme"],
        "methods": ["POST", "GET"],
        "auth": {"scheme": "token", "token_ref": "GITHUB_TOKEN"},
        "lease": {"ttl_seconds": 3600, "max_uses": 5},
    }
    merge = merged(ask)
    assert merge.effects == (
        "newly reachable: GET, POST on api.github.com under /repos/acme; carries GITHUB_TOKEN;"
        " until 2030-01-01 13:00:00 UTC, for at most 5 uses",
        "the gate lets api.github.com through",
    )
    assert merge.warnings == ()
    assert merge.granted == {
        "host": "api.github.com",
        "path_allowlist": ["/repos/acme"],
        "methods": ["GET", "POST"],
        "lease": {"expires_at": "2030-01-01T13:00:00Z", "max_uses": 5},
        "auth_injected": True,
    }
    assert merge.table.gate_hosts == ("api.github.com",)


def test_prefixes_are_united_and_covered_ones_dropped() -> None:
    merge = merged({"host": "A.com", "path_allowlist": ["/x", "/b"]}, Route("a.com", ("/a", "/x/y")))
    assert merge.table.routes == (Route("a.com", ("/a", "/b", "/x")),)
    assert merge.effects == ("newly reachable: all methods on a.com under /b, /x",)
    assert merge.warnings == ()


def test_all_paths_onto_a_limited_route_is_a_widening() -> None:
    merge = merged({"host": "a.com"}, Route("a.com", ("/a",)))
    assert merge.table.routes == (Route("a.com"),)
    assert merge.warnings == ("widening: all paths of a.com, so far only under /a",)


def test_all_methods_onto_a_limited_route_is_a_widening() -> None:
    merge = merged({"host": "a.com"}, Route("a.com", methods=("GET",)))
    assert merge.table.routes == (Route("a.com"),)
    assert merge.warnings == ("widening: all methods on a.com, so far only GET",)


def test_a_bare_route_stays_bare() -> None:
    merge = merged({"host": "a.com", "path_allowlist": ["/x"], "methods": ["GET"]}, Route("a.com"))
    assert not merge.changed
    assert merge.effects == ("nothing changes: already reachable are all methods on all paths of a.com",)
    assert merge.warnings == ()


def test_combinations_that_nobody_asked_for_are_warned_about() -> None:
    merge = merged(
        {"host": "a.com", "path_allowlist": ["/b"], "methods": ["POST"]}, Route("a.com", ("/a",), ("GET",))
    )
    assert merge.table.routes == (Route("a.com", ("/a", "/b"), ("GET", "POST")),)
    assert merge.warnings == (
        "more than asked: GET, POST may be used under /b, asked was only POST",
        "more than asked: POST may be used under /a, /b, asked was only under /b",
    )


def test_auth_of_an_existing_host_is_ignored_and_said() -> None:
    ask = {"host": "a.com", "auth": {"scheme": "Bearer", "token_ref": "NEW"}}
    merge = merged(ask, Route("a.com", auth=Auth("Bearer", "OLD")))
    assert (merge.changed, merge.ignored) == (False, ("auth",))
    assert (
        merge.effects[-1]
        == "auth is ignored: a.com is already reachable, and only an operator changes its auth"
    )
    assert merged(ask, Route("a.com")).table.routes == (Route("a.com"),)


def test_an_operator_changes_auth_dlp_and_pins() -> None:
    ask = {
        "host": "a.com",
        "auth": {"scheme": "Bearer", "token_ref": "NEW"},
        "dlp": {"out": True, "in": True},
        "pinned_addresses": ["10.0.0.1"],
    }
    table = RouteTable((Route("a.com", auth=Auth("Bearer", "OLD")),), ("a.com",))
    merge = merge_route(table, ask, now=NOW, operator=True)
    assert merge.ignored == ()
    assert merge.table.routes == (
        Route("a.com", (), (), Auth("Bearer", "NEW"), None, Dlp(True, True), ("10.0.0.1",)),
    )
    assert merge.effects == (
        "changed credential: a.com; carries NEW",
        "changed settings: a.com; pinned to 10.0.0.1; scanned: requests and answers",
    )


@pytest.mark.parametrize(
    ("existing", "asked", "result", "warning"),
    [
        (Lease(NOW + HOUR), {"ttl_seconds": 7200}, Lease(NOW + 2 * HOUR), None),
        (Lease(NOW + HOUR), {"ttl_seconds": 60}, Lease(NOW + HOUR), None),
        (Lease(NOW + HOUR), None, None, "widening: a.com becomes reachable for good, so far until"),
        (Lease(None, 5), {"max_uses": 3}, Lease(None, 5, NOW), None),
        (Lease(None, 5), {"max_uses": 9}, Lease(None, 9, NOW), None),
        (
            Lease(None, 5),
            {"ttl_seconds": 60},
            None,
            "widening: a.com becomes reachable for good, so far for at most 5",
        ),
        (
            Lease(NOW + HOUR, 5),
            {"ttl_seconds": 60},
            Lease(NOW + HOUR),
            "widening: the uses of a.com are no longer limited",
        ),
        (
            Lease(NOW + HOUR, 5),
            {"max_uses": 2},
            Lease(None, 5, NOW),
            "widening: a.com no longer ends at a set time",
        ),
        (None, {"ttl_seconds": 60}, None, None),
    ],
)
def test_a_lease_is_never_shortened_and_its_loss_is_a_widening(
    existing: Lease | None, asked: dict[str, int] | None, result: Lease | None, warning: str | None
) -> None:
    ask = {"host": "a.com"} | ({"lease": asked} if asked else {})
    merge = merged(ask, Route("a.com", lease=existing))
    assert merge.table.routes == (Route("a.com", lease=result),)
    assert [text.startswith(warning or "") for text in merge.warnings] == ([True] if warning else [])


def test_new_paths_of_a_lasting_route_outlast_the_lease_asked_for() -> None:
    merge = merged(
        {"host": "a.com", "path_allowlist": ["/b"], "lease": {"ttl_seconds": 60}}, Route("a.com", ("/a",))
    )
    assert merge.warnings == ("more than asked: what is new lasts as long as the rest of a.com, for good",)


def test_an_expired_route_counts_as_absent() -> None:
    old = Route("a.com", auth=Auth("Bearer", "OLD"), lease=Lease(NOW))
    merge = merged({"host": "a.com", "path_allowlist": ["/x"]}, old)
    assert merge.table.routes == (Route("a.com", ("/x",)),)
    assert merge.effects == ("newly reachable: all methods on a.com under /x",)


def test_a_host_below_a_wildcard_starts_from_the_wildcards_route() -> None:
    wide = Route("*.a.com", ("/a",), auth=Auth("Bearer", "T"))
    merge = merged({"host": "x.a.com", "path_allowlist": ["/b"]}, wide)
    assert merge.table.get("x.a.com") == Route("x.a.com", ("/a", "/b"), auth=Auth("Bearer", "T"))
    assert merge.effects == (
        "newly reachable: all methods on x.a.com under /b; carries T",
        "x.a.com gets a route of its own, which starts from that of *.a.com",
    )
    assert not merged({"host": "x.a.com", "path_allowlist": ["/a/b"]}, wide).changed


def test_a_wildcard_is_warned_about_with_the_routes_it_does_not_change() -> None:
    merge = merged({"host": "*.a.com"}, Route("x.a.com", ("/x",)), Route("a.com"))
    assert merge.warnings == (
        "*.a.com covers every name below a.com, also names that do not exist yet",
        "x.a.com keeps its own route, whatever *.a.com allows",
    )


def test_a_name_that_imitates_another_is_warned_about() -> None:
    assert "can imitate another name" in merged({"host": "gіthub.com"}).warnings[0]


def test_a_route_that_lost_its_gate_entry_gets_it_back() -> None:
    merge = merge_route(RouteTable((Route("a.com"),)), {"host": "a.com"}, now=NOW)
    assert (merge.changed, merge.table.gate_hosts) == (True, ("a.com",))
    assert merge.effects == ("the gate lets a.com through",)


def test_it_refuses_an_ask_that_was_not_parsed() -> None:
    with pytest.raises(BadRoute):
        merge_route(RouteTable(), {"path_allowlist": ["/x"]}, now=NOW)
    with pytest.raises(BadRoute, match="time zone"):
        merge_route(RouteTable(), {"host": "a.com"}, now=NOW.replace(tzinfo=None))


def test_a_gate_host_alone_makes_nothing_reachable_and_says_so() -> None:
    merge = merge_gate_host(RouteTable(), "A.com")
    assert (merge.changed, merge.table.gate_hosts, merge.granted) == (True, ("a.com",), {"host": "a.com"})
    assert merge.effects == ("the gate lets a.com through",)
    assert merge.warnings == ("a.com has no route yet, so it stays unreachable until one is approved",)
    again = merge_gate_host(merge.table.with_route(Route("a.com")), "a.com")
    assert (again.changed, again.warnings) == (False, ())
    assert again.effects == ("nothing changes: the gate lets a.com through already",)


def test_a_diff_lists_routes_then_the_gate() -> None:
    old = RouteTable((Route("a.com"), Route("b.com")), ("a.com", "b.com"))
    new = RouteTable((Route("b.com", ("/x",)), Route("c.com")), ("b.com", "c.com"))
    plain = {table.host: table.as_dict() for table in (Route("a.com"), Route("b.com"), Route("c.com"))}
    assert diff_tables(old, new) == (
        RouteChange("route", "removed", "a.com", plain["a.com"], None),
        RouteChange(
            "route", "changed", "b.com", plain["b.com"], {**plain["b.com"], "path_allowlist": ["/x"]}
        ),
        RouteChange("route", "added", "c.com", None, plain["c.com"]),
        RouteChange("gate", "removed", "a.com", {"host": "a.com"}, None),
        RouteChange("gate", "added", "c.com", None, {"host": "c.com"}),
    )
    assert diff_tables(old, old) == ()


# --- what a new table takes away


@pytest.mark.parametrize(
    "ask",
    [
        {"host": "b.com"},
        {"host": "a.com", "path_allowlist": ["/y"]},
        {"host": "a.com", "path_allowlist": ["/x/deeper"]},
        {"host": "a.com", "methods": ["PUT"]},
        {"host": "a.com"},
    ],
)
def test_an_approved_ask_takes_nothing_away(ask: dict[str, Any]) -> None:
    before = RouteTable((Route("a.com", ("/x",), ("GET",)), Route("c.com")), ("a.com", "c.com"))
    assert not takes_away(before, merge_route(before, parse_egress_ask(ask), now=NOW).table, now=NOW)


def test_what_was_over_already_is_not_taken_away() -> None:
    over = Route("a.com", lease=Lease(expires_at=NOW - HOUR))
    assert not takes_away(RouteTable((over,)), RouteTable(), now=NOW)


@given(tables, tables, requests)
def test_what_takes_nothing_away_allows_all_that_was_allowed(
    before: RouteTable, after: RouteTable, request: Request
) -> None:
    if allows(before, request) and not allows(after, request):
        assert takes_away(before, after, now=NOW)


@pytest.mark.parametrize(
    "after",
    [
        RouteTable((), ("a.com",)),
        RouteTable((Route("a.com", ("/x",)),), ("a.com",)),
        RouteTable((Route("a.com", methods=("GET",)),), ("a.com",)),
        RouteTable((Route("a.com", lease=Lease(max_uses=3)),), ("a.com",)),
        RouteTable((Route("a.com", dlp=Dlp(out=True)),), ("a.com",)),
        RouteTable((Route("a.com"),), ()),
    ],
    ids=["route", "path", "methods", "lease", "search", "gate"],
)
def test_less_than_before_takes_something_away(after: RouteTable) -> None:
    before = RouteTable((Route("a.com"),), ("a.com",))
    assert takes_away(before, after, now=NOW)
    assert not takes_away(before, before, now=NOW)
    assert not takes_away(RouteTable(), after, now=NOW)
