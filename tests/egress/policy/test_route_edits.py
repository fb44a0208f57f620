"""An operator's change of one route: the rest stays, null takes away, and what is widened is known."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given

from egress.policy.decide import Request, decide
from egress.policy.errors import PolicyError
from egress.policy.merge import change_route, withdraw_route
from egress.policy.routes import Auth, Dlp, Lease, Route
from egress.policy.table import RouteTable, Snapshot
from tests.support.strategies import NOW, requests, tables

HOUR = timedelta(hours=1)
LEASE = Lease(NOW + HOUR, 5, NOW - HOUR)
API = Route(
    "api.example.com",
    ("/a", "/b"),
    ("GET", "POST"),
    Auth("Bearer", "TOKEN"),
    LEASE,
    Dlp(out=True),
    ("10.0.0.1", "10.0.0.2"),
)
OTHER = Route("other.example.com")
TABLE = RouteTable((API, OTHER), (API.host, OTHER.host, "gate.example.com"))


def allows(table: RouteTable, request: Request) -> bool:
    return decide(request, Snapshot("b", 1, table, ""), now=NOW).allowed


# --- withdrawing


def test_a_withdrawn_route_leaves_the_table_and_the_gate() -> None:
    made = withdraw_route(TABLE, API.host, now=NOW)
    assert made.table == RouteTable((OTHER,), (OTHER.host, "gate.example.com"))
    assert (made.before, made.after, made.widens) == (API, None, False)
    assert made.effects == (
        "no longer reachable: api.example.com; open connections that use its route are cut at once",
    )


@given(tables)
def test_withdrawing_is_the_inverse_of_adding(table: RouteTable) -> None:
    without = withdraw_route(table.with_route(API), API.host, now=NOW).table
    assert without.with_route(API) == table.with_route(API)
    assert without.get(API.host) is None and API.host not in without.gate_hosts


@given(tables, requests)
def test_withdrawing_all_leaves_nothing(table: RouteTable, request: Request) -> None:
    for route in table.routes:
        table = withdraw_route(table, route.host, now=NOW).table
    assert table.routes == () and not allows(table, request)


def test_a_wider_route_above_it_is_told_and_counts_as_more() -> None:
    wide = Route("*.example.com")
    table = RouteTable().with_route(wide).with_route(Route("api.example.com", ("/a",), ("GET",)))
    made = withdraw_route(table, "api.example.com", now=NOW)
    assert made.widens
    assert "api.example.com stays reachable by the route of *.example.com: all methods on all paths" in (
        made.effects
    )
    assert any("all paths of api.example.com, so far only under /a" in text for text in made.warnings)
    assert not withdraw_route(table, "*.example.com", now=NOW).widens


def test_a_route_that_is_over_hid_nothing() -> None:
    over = Route("api.example.com", ("/a",), lease=Lease(NOW - HOUR, None, None))
    table = RouteTable().with_route(Route("*.example.com")).with_route(over)
    assert not withdraw_route(table, "api.example.com", now=NOW).widens


# --- changing


@pytest.mark.parametrize(
    ("fields", "after"),
    [
        ({"path_allowlist": ["/a"]}, {"path_allowlist": ("/a",)}),
        ({"path_allowlist": None}, {"path_allowlist": ()}),
        ({"methods": ["get"]}, {"methods": ("GET",)}),
        ({"auth": None}, {"auth": None}),
        ({"auth": {"scheme": "Basic", "token_ref": "B"}}, {"auth": Auth("Basic", "B")}),
        ({"lease": None}, {"lease": None}),
        ({"lease": {"ttl_seconds": 60}}, {"lease": Lease(NOW + timedelta(minutes=1), None, NOW)}),
        ({"dlp": {"out": False}}, {"dlp": Dlp(out=False)}),
        ({"dlp": None}, {"dlp": Dlp()}),
        ({"pinned_addresses": ["10.0.0.9"]}, {"pinned_addresses": ("10.0.0.9",)}),
        ({"pinned_addresses": None, "auth": None}, {"pinned_addresses": (), "auth": None}),
        ({"host": "api.example.com", "methods": []}, {"methods": ()}),
    ],
)
def test_only_the_given_fields_change(fields: dict[str, Any], after: dict[str, Any]) -> None:
    made = change_route(TABLE, API.host, fields, now=NOW)
    wanted = {name: getattr(API, name) for name in API.__match_args__} | after
    assert made.after == Route(**wanted)
    assert made.table == TABLE.with_route(Route(**wanted))
    assert made.effects


@pytest.mark.parametrize(
    ("host", "fields", "words"),
    [
        ("nobody.example.com", {"auth": None}, "no route of 'nobody.example.com'"),
        ("API.example.com", {"auth": None}, "no route of"),
        (API.host, {}, "nothing to change"),
        (API.host, {"methods": ["POST", "get"]}, "nothing to change"),
        (API.host, {"host": "other.example.com"}, "another host needs a route of its own"),
        (API.host, {"colour": "red"}, "unknown key 'colour'"),
        (API.host, {"path_allowlist": "/a"}, "must be a list"),
        (API.host, {"dlp": {"out": "no"}}, "dlp.out must be true or false"),
        (API.host, {"pinned_addresses": ["here"]}, "must be an IP address"),
        (API.host, {"auth": {"scheme": "Bearer", "token_ref": "a secret!"}}, "never the secret itself"),
        (API.host, {"lease": {}}, "ttl_seconds, max_uses or both"),
    ],
)
def test_what_cannot_be_is_one_sentence(host: str, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(PolicyError, match=words):
        change_route(TABLE, host, fields, now=NOW)


def test_a_private_name_keeps_its_addresses() -> None:
    table = RouteTable().with_route(Route("db.internal", pinned_addresses=("10.0.0.5",)))
    changed = change_route(table, "db.internal", {"methods": ["GET"]}, now=NOW).after
    assert changed and changed.pinned_addresses == ("10.0.0.5",)
    with pytest.raises(PolicyError, match="pinned_addresses"):
        change_route(table, "db.internal", {"pinned_addresses": None}, now=NOW)


WIDER: list[dict[str, Any]] = [
    {"path_allowlist": ["/a", "/b", "/c"]},
    {"path_allowlist": None},
    {"methods": ["GET", "POST", "PUT"]},
    {"methods": []},
    {"auth": {"scheme": "Bearer", "token_ref": "OTHER"}},
    {"lease": None},
    {"lease": {"ttl_seconds": 7200, "max_uses": 5}},
    {"lease": {"ttl_seconds": 60, "max_uses": 1}},  # uses are counted anew
    {"dlp": {"out": False}},
    {"dlp": None},
    {"pinned_addresses": ["10.0.0.3"]},
    {"pinned_addresses": None},
]
NARROWER: list[dict[str, Any]] = [
    {"path_allowlist": ["/a"]},
    {"path_allowlist": ["/a/below", "/b"]},
    {"methods": ["GET"]},
    {"auth": None},
    {"dlp": {"out": True, "in": True}},
    {"pinned_addresses": ["10.0.0.1"]},
]


@pytest.mark.parametrize("fields", WIDER, ids=str)
def test_more_than_before_is_known(fields: dict[str, Any]) -> None:
    assert change_route(TABLE, API.host, fields, now=NOW).widens


@pytest.mark.parametrize("fields", NARROWER, ids=str)
def test_less_than_before_is_known(fields: dict[str, Any]) -> None:
    assert not change_route(TABLE, API.host, fields, now=NOW).widens


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"path_allowlist": ["/a"]}, "no longer reachable: api.example.com under /b"),
        ({"methods": ["GET"]}, "no longer allowed: POST on api.example.com"),
        ({"auth": None}, "changed credential: api.example.com; none"),
        ({"path_allowlist": ["/a", "/b", "/c"]}, "newly reachable: GET, POST on api.example.com under /c"),
        ({"lease": None}, "api.example.com stays reachable for good"),
        ({"dlp": {"out": False}}, "scanned: nothing"),
        ({"pinned_addresses": ["10.0.0.9"]}, "pinned to 10.0.0.9"),
    ],
)
def test_a_change_is_told_in_words(fields: dict[str, Any], sentence: str) -> None:
    assert sentence in "\n".join(change_route(TABLE, API.host, fields, now=NOW).effects)


def test_all_made_narrow_is_told_in_words() -> None:
    made = change_route(TABLE, OTHER.host, {"path_allowlist": ["/x"], "methods": ["GET"]}, now=NOW)
    assert made.effects == (
        "other.example.com stays reachable only under /x, so far on all paths",
        "other.example.com stays reachable only with GET, so far with all methods",
    )


@pytest.mark.parametrize(
    ("route", "fields", "sentence"),
    [
        (API, {"dlp": {"out": False}}, "what is sent to api.example.com is no longer searched for secrets"),
        (Route("a.example.com", auth=Auth("Bearer", "T")), {"auth": None}, "is tunnelled from now on"),
        (
            Route("a.example.com", dlp=Dlp(None, True)),
            {"dlp": None},
            "answers of a.example.com are no longer",
        ),
        (API, {"path_allowlist": None}, "widening: all paths"),
    ],
)
def test_what_could_be_overlooked_is_warned_about(
    route: Route, fields: dict[str, Any], sentence: str
) -> None:
    made = change_route(RouteTable().with_route(route), route.host, fields, now=NOW)
    assert sentence in "\n".join(made.warnings)
