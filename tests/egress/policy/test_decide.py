"""The matcher: deny by default, exact host before wildcard, and a refusal that says what to ask for."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egress.policy.asks import parse_egress_ask
from egress.policy.decide import PORTS, Request, Verdict, decide, decide_connect, used_up
from egress.policy.errors import BadRoute, PolicyError
from egress.policy.hostnames import canonical_host
from egress.policy.paths import canonical_path
from egress.policy.routes import Auth, Dlp, Lease, Route
from egress.policy.table import RouteTable, Snapshot

NOW = datetime(2030, 1, 1, 12, 0, tzinfo=UTC)
TOKEN = Auth("Bearer", "GITHUB_TOKEN")
OVER = Lease(expires_at=NOW)
LIVE = Lease(expires_at=NOW + timedelta(seconds=1))
LONG = "/v1/" + "x" * 1020  # as long as a prefix may be


def table_of(*routes: Route) -> RouteTable:
    return RouteTable(routes, tuple(route.host for route in routes))


def verdict(method: str, url: str, *routes: Route) -> Verdict:
    parts = urlsplit(url)
    host, port = canonical_host(parts.hostname or ""), parts.port or PORTS[parts.scheme]
    request = Request(parts.scheme, host, port, method, parts.path or "/")
    return decide(request, Snapshot("b", 1, table_of(*routes), ""), now=NOW)


@pytest.mark.parametrize(
    ("method", "url", "routes", "reason"),
    [
        ("GET", "https://a.com/", [], "no-route"),
        ("GET", "https://a.com/", [Route("a.com")], "ok"),
        ("GET", "https://A.com./", [Route("a.com")], "ok"),
        ("GET", "http://a.com/", [Route("a.com")], "ok"),
        ("GET", "http://a.com/", [Route("a.com", auth=TOKEN)], "plain-http"),
        ("GET", "https://a.com/", [Route("a.com", auth=TOKEN)], "ok"),
        ("GET", "https://a.com:8443/", [Route("a.com")], "port"),
        ("GET", "https://a.com:80/", [Route("a.com")], "port"),
        ("GET", "http://a.com:443/", [Route("a.com")], "port"),
        ("GET", "https://b.a.com/", [Route("a.com")], "no-route"),
        ("GET", "https://b.a.com/", [Route("*.a.com")], "ok"),
        ("GET", "https://a.com/", [Route("*.a.com")], "no-route"),
        ("GET", "https://a.com/repos/x", [Route("a.com", ("/repos",))], "ok"),
        ("GET", "https://a.com/reposevil", [Route("a.com", ("/repos",))], "path"),
        ("GET", "https://a.com/x?y=/repos", [Route("a.com", ("/repos",))], "path"),
        ("GET", "https://a.com/", [Route("a.com", methods=("GET",))], "ok"),
        ("POST", "https://a.com/", [Route("a.com", methods=("GET",))], "method"),
        ("HEAD", "https://a.com/", [Route("a.com", methods=("GET",))], "method"),
        ("GET", "https://a.com/", [Route("a.com", lease=LIVE)], "ok"),
        ("GET", "https://a.com/", [Route("a.com", lease=OVER)], "expired"),
        ("GET", "https://x.a.com/q", [Route("x.a.com", ("/p",)), Route("*.a.com")], "path"),
        ("GET", "https://x.a.com/q", [Route("x.a.com", ("/p",), lease=OVER), Route("*.a.com")], "ok"),
        ("GET", "https://y.x.a.com/q", [Route("*.a.com"), Route("*.x.a.com", ("/p",))], "path"),
    ],
)
def test_it_decides(method: str, url: str, routes: list[Route], reason: str) -> None:
    found = verdict(method, url, *routes)
    assert found.reason == reason
    assert found.allowed is (reason == "ok")
    assert found.sentence.endswith(".")


def test_a_route_without_the_gate_is_refused_by_the_gate() -> None:
    snapshot = Snapshot("b", 1, RouteTable((Route("a.com"),)), "")
    found = decide(Request("https", "a.com", 443, "GET", "/"), snapshot, now=NOW)
    assert (found.allowed, found.reason) == (False, "gate")


@pytest.mark.parametrize(
    ("host", "path", "reason"),
    [
        ("A.com", "/", "bad-host"),
        ("a.com.", "/", "bad-host"),
        ("127.0.0.1", "/", "bad-host"),
        ("*.a.com", "/", "bad-host"),
        ("", "/", "bad-host"),
        ("a.com", "/a/../b", "bad-path"),
        ("a.com", "", "bad-path"),
        ("a.com", "/x?y", "bad-path"),
    ],
)
def test_what_is_not_canonical_is_refused_even_with_an_open_route(host: str, path: str, reason: str) -> None:
    snapshot = Snapshot("b", 1, table_of(Route("a.com"), Route("*.a.com")), "")
    found = decide(Request("https", host, 443, "GET", path), snapshot, now=NOW)
    assert (found.allowed, found.reason, found.ask) == (False, reason, None)


@pytest.mark.parametrize(
    ("method", "url", "ask"),
    [
        ("GET", "https://a.com/", {"host": "a.com", "methods": ["GET"]}),
        (
            "POST",
            "https://a.com/x/%2f/",
            {"host": "a.com", "path_allowlist": ["/x/%2F"], "methods": ["POST"]},
        ),
        ("GET", "https://nas.local/", None),
        ("GET", "https://metadata.google.internal/", None),
        ("TRACE", "https://a.com/", None),
        ("GET", f"https://a.com{LONG}", {"host": "a.com", "path_allowlist": [LONG], "methods": ["GET"]}),
        ("GET", f"https://a.com{LONG}/", {"host": "a.com", "path_allowlist": [LONG], "methods": ["GET"]}),
        ("GET", f"https://a.com{LONG}/x/y", {"host": "a.com", "path_allowlist": [LONG], "methods": ["GET"]}),
        ("GET", f"https://a.com{LONG}x", {"host": "a.com", "path_allowlist": ["/v1"], "methods": ["GET"]}),
        (
            "GET",
            "https://a.com/%c3%bc/" + "x" * 3000,
            {"host": "a.com", "path_allowlist": ["/%C3%BC"], "methods": ["GET"]},
        ),
        ("GET", "https://a.com/" + "x" * 3000, None),
    ],
)
def test_a_refusal_carries_the_arguments_that_would_ask_for_it(
    method: str, url: str, ask: dict[str, Any] | None
) -> None:
    assert verdict(method, url).ask == ask


NEVER_GRANTED = ["nas", "localhost", "printer.local", "metadata.google.internal", "metadata.azure.com",
                 "x.onion", "co.uk", "s3.amazonaws.com", "supervise"]  # fmt: skip


@pytest.mark.parametrize("host", NEVER_GRANTED)
def test_a_refusal_for_what_can_never_be_granted_suggests_no_tool(host: str) -> None:
    request, over = Request("https", host, 443, "GET", "/v1"), Lease(NOW, 1, granted_at=NOW)
    tables = {
        "no-route": RouteTable(),
        "expired": RouteTable((Route(host, lease=over),), (host,)),
        "gate": RouteTable((Route(host),), ()),
    }
    verdicts = {
        reason: decide(request, Snapshot("b", 1, table, ""), now=NOW) for reason, table in tables.items()
    }
    verdicts["used-up"] = used_up(request, Route(host, lease=over))
    connects = [decide_connect(host, 443, Snapshot("b", 1, table, ""), now=NOW) for table in tables.values()]
    assert [verdict.reason for verdict in verdicts.values()] == list(verdicts)
    for verdict in (*verdicts.values(), *connects):
        assert verdict.ask is None
        assert "It cannot be asked for: " in verdict.sentence
        assert not {"egress-block", "pipelock-block"} & set(re.findall(r"[a-z-]+", verdict.sentence))


@pytest.mark.parametrize("host", ["169.254.169.254", "127.1", "0x7f.1", "1.1.1.1"])
def test_an_address_is_refused_as_what_nobody_can_ask_for(host: str) -> None:
    found = decide(Request("https", host, 443, "GET", "/"), Snapshot("b", 1, RouteTable(), ""), now=NOW)
    assert (found.reason, found.ask) == ("bad-host", None)
    assert "only names can be asked for" in found.sentence


SEGMENTS = st.lists(
    st.sampled_from(["a", "%c3%bc", "b%2Fc", "@scope", "v1.2", "x" * 300, "y" * 1022, "z" * 1023]),
    max_size=12,
)


@given(SEGMENTS, st.sampled_from(["", "/"]))
def test_what_is_asked_for_can_be_asked_for_and_would_do(segments: list[str], end: str) -> None:
    path = canonical_path("/" + "/".join(segments) + (end if segments else ""))
    request = Request("https", "a.com", 443, "GET", path)
    ask = decide(request, Snapshot("b", 1, RouteTable(), ""), now=NOW).ask
    if ask is None:
        assert len(path) > 1024 and path.find("/", 1) not in range(1, 1025), "only all paths would do"
        return
    asked = parse_egress_ask(ask)
    assert asked == ask
    granted = Route("a.com", tuple(asked.get("path_allowlist", ())), tuple(asked["methods"]))
    assert decide(request, Snapshot("b", 1, table_of(granted), ""), now=NOW).allowed
    assert granted.path_allowlist or path == "/", "never for all paths"


def test_open_routes_are_those_that_something_is_reached_by() -> None:
    routes = (Route("a.com"), Route("b.com", lease=OVER), Route("c.com", lease=LIVE), Route("x.d.com"))
    table = RouteTable((*routes, Route("shut.com")), ("a.com", "b.com", "c.com", "*.d.com"))
    assert [route.host for route in table.open_routes(NOW)] == ["a.com", "c.com", "x.d.com"]


def test_a_connection_is_decided_by_host_alone() -> None:
    snapshot = Snapshot("b", 1, table_of(Route("a.com", ("/x",), ("GET",))), "")
    assert decide_connect("a.com", 443, snapshot, now=NOW).allowed
    assert decide_connect("a.com", 80, snapshot, now=NOW).reason == "port"
    assert decide_connect("b.com", 443, snapshot, now=NOW).ask == {"host": "b.com"}


@pytest.mark.parametrize(
    ("route", "bare"),
    [
        (Route("a.com"), True),
        (Route("a.com", ("/",)), True),
        (Route("a.com", lease=Lease(max_uses=3)), True),
        (Route("a.com", ("/x",)), False),
        (Route("a.com", methods=("GET",)), False),
        (Route("a.com", auth=TOKEN), False),
        (Route("a.com", dlp=Dlp(incoming=True)), False),
        (Route("a.com", dlp=Dlp(out=True)), False),
        (Route("a.com", dlp=Dlp(out=False)), True),
    ],
)
def test_a_bare_route_needs_no_look_inside(route: Route, bare: bool) -> None:
    assert route.is_bare is bare


def test_routes_and_tables_are_normalised_and_ordered() -> None:
    route = Route("B.com", ("/x/", "/x/y", "/a"), ("post", "GET", "get"))
    assert (route.host, route.path_allowlist, route.methods) == ("b.com", ("/a", "/x"), ("GET", "POST"))
    assert table_of(route, Route("a.com")) == table_of(Route("a.com"), route)
    assert [found.host for found in table_of(route, Route("a.com")).routes] == ["a.com", "b.com"]


def test_with_route_replaces_and_mirrors() -> None:
    table = RouteTable().with_route(Route("a.com")).with_route(Route("a.com", ("/x",)))
    assert table.get("a.com") == Route("a.com", ("/x",))
    assert table.gate_hosts == ("a.com",)


FULL = {
    "routes": [
        {
            "host": "a.com",
            "path_allowlist": ["/x"],
            "methods": ["GET"],
            "auth": {"scheme": "header", "token_ref": "KEY", "header": "X-Api-Key"},
            "lease": {
                "expires_at": "2030-01-01T00:00:00Z",
                "max_uses": 3,
                "granted_at": "2029-01-01T00:00:00Z",
            },
            "dlp": {"out": False, "in": True},
            "pinned_addresses": ["10.0.0.1"],
        }
    ],
    "gate_hosts": ["a.com"],
}


def test_a_table_survives_its_plain_form() -> None:
    assert RouteTable.from_dict(FULL).as_dict() == FULL
    assert RouteTable.from_dict(RouteTable().as_dict()) == RouteTable()


def test_the_public_form_tells_nothing_about_the_credential() -> None:
    public = RouteTable.from_dict(FULL).routes[0].as_public_dict()
    assert public["auth_injected"] is True
    assert "KEY" not in str(public)
    assert "10.0.0.1" not in str(public)


@pytest.mark.parametrize(
    ("plain", "because"),
    [
        ([], "table must be an object"),
        ({"route": []}, "unknown key 'route'"),
        ({"routes": {}}, "routes must be a list"),
        ({"routes": ["a.com"]}, "route must be an object"),
        ({"routes": [{}]}, "route.host is required"),
        ({"routes": [{"host": "a.com", "paths": []}]}, "unknown key 'paths'"),
        ({"routes": [{"host": "a.com"}, {"host": "A.com"}]}, "two entries for 'a.com'"),
        ({"routes": [{"host": "127.1"}]}, "IP address"),
        ({"routes": [{"host": "a.com", "path_allowlist": "/x"}]}, "path_allowlist must be a list"),
        ({"routes": [{"host": "a.com", "path_allowlist": ["x"]}]}, "must start with '/'"),
        ({"routes": [{"host": "a.com", "methods": ["CONNECT"]}]}, "methods\\[0\\] must be an HTTP method"),
        ({"routes": [{"host": "a.com", "methods": [1]}]}, "methods\\[0\\] must be an HTTP method"),
        ({"routes": [{"host": "a.com", "auth": {"scheme": "Bearer"}}]}, "auth.token_ref is required"),
        ({"routes": [{"host": "a.com", "auth": {"scheme": "x", "token_ref": "A"}}]}, "auth.scheme"),
        ({"routes": [{"host": "a.com", "auth": {"scheme": "Bearer", "token_ref": "a b"}}]}, "auth.token_ref"),
        ({"routes": [{"host": "a.com", "auth": {"scheme": "header", "token_ref": "A"}}]}, "auth.header"),
        (
            {"routes": [{"host": "a.com", "auth": {"scheme": "header", "token_ref": "A", "header": "Host"}}]},
            "auth.header",
        ),
        ({"routes": [{"host": "a.com", "lease": {}}]}, "lease needs an end"),
        ({"routes": [{"host": "a.com", "lease": {"max_uses": True}}]}, "lease.max_uses"),
        ({"routes": [{"host": "a.com", "lease": {"expires_at": "2030-01-01"}}]}, "lease.expires_at"),
        ({"routes": [{"host": "a.com", "lease": {"expires_at": 5}}]}, "lease.expires_at"),
        ({"routes": [{"host": "a.com", "dlp": {"out": 1}}]}, "dlp.out must be true or false"),
        ({"routes": [{"host": "a.com", "dlp": {"in": None}}]}, "dlp.in must be true or false"),
        ({"routes": [{"host": "a.com", "dlp": {"incoming": True}}]}, "unknown key 'incoming'"),
        ({"routes": [{"host": "a.com", "pinned_addresses": ["x"]}]}, "pinned_addresses\\[0\\]"),
        ({"gate_hosts": [None]}, "gate_hosts must be a hostname"),
        ({"gate_hosts": "a.com"}, "gate_hosts must be a list"),
    ],
)
def test_from_dict_refuses_and_names_the_field(plain: object, because: str) -> None:
    with pytest.raises(PolicyError, match=because):
        RouteTable.from_dict(plain)


def test_times_without_a_zone_are_refused() -> None:
    with pytest.raises(BadRoute, match="time zone"):
        Lease(expires_at=datetime(2030, 1, 1))
