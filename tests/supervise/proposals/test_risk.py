"""How much a yes would give away."""

from __future__ import annotations

from typing import Any

import pytest

from egress.policy.routes import Auth, Route
from egress.policy.table import RouteTable
from supervise.kinds.capability_block import image_risk
from supervise.kinds.pipelock_block import PipelockBlock
from supervise.proposals.risk import Level, route_risk

NARROW = {"path_allowlist": ["/x"], "methods": ["GET"], "lease": {"ttl_seconds": 60}}
WITH_CREDENTIAL = RouteTable((Route("api.example.com", ("/a",), auth=Auth("Bearer", "TOKEN")),))


@pytest.mark.parametrize(
    ("payload", "level", "reason"),
    [
        ({"host": "api.example.com", **NARROW}, Level.LOW, "first route"),
        ({"host": "api.example.com", **NARROW, "methods": ["GET", "POST"]}, Level.MEDIUM, "send data out"),
        ({"host": "api.example.com", **NARROW, "methods": []}, Level.MEDIUM, "all methods"),
        ({"host": "api.example.com", **NARROW, "path_allowlist": []}, Level.MEDIUM, "all paths"),
        ({"host": "*.example.com", **NARROW}, Level.HIGH, "wildcard"),
        ({"host": "xn--bcher-kva.example", **NARROW}, Level.MEDIUM, "punycode"),
        ({"host": "xn--pple-43d.com", **NARROW}, Level.HIGH, "mixes scripts"),
        (
            {"host": "api.example.com", **NARROW, "auth": {"scheme": "Bearer", "token_ref": "KEY"}},
            Level.HIGH,
            "credential KEY",
        ),
    ],
)
def test_an_egress_ask_is_as_risky_as_its_riskiest_part(
    payload: dict[str, Any], level: Level, reason: str
) -> None:
    risk = route_risk(payload, RouteTable(), ())
    assert risk.level is level
    assert any(reason in text for text in risk.reasons)


def test_the_riskiest_reason_comes_first() -> None:
    risk = route_risk({"host": "*.example.com"}, RouteTable(), ())
    assert risk.reasons[0].startswith("wildcard")


def test_more_reach_for_a_credential_that_is_there_is_high() -> None:
    risk = route_risk({"host": "api.example.com", **NARROW}, WITH_CREDENTIAL, ())
    assert risk.level is Level.HIGH
    assert "carries the credential TOKEN" in risk.reasons[0]


@pytest.mark.parametrize(
    ("address", "level"),
    [("10.0.0.7", Level.HIGH), ("169.254.169.254", Level.HIGH), ("192.31.196.10", Level.LOW)],
)
def test_a_route_pinned_to_a_private_address_is_high(address: str, level: Level) -> None:
    ask = {"host": "api.example.com", **NARROW}
    pinned = RouteTable((Route("api.example.com", ("/a",), pinned_addresses=(address,)),))
    assert route_risk(ask, pinned, ()).level is level
    assert route_risk({**ask, "pinned_addresses": [address]}, RouteTable(), ()).level is level


@pytest.mark.parametrize(
    ("host", "known"), [("githud.com", "github.com"), ("api.acme-corq.com", "acme-corp.com")]
)
def test_a_look_alike_of_a_known_host_is_high(host: str, known: str) -> None:
    reached = RouteTable((Route("www.acme-corp.com"),))
    risk = route_risk({"host": host, **NARROW}, reached, ())
    assert risk.level is Level.HIGH
    assert risk.warnings == (f"look-alike: it could be taken for {known}",)
    asked = {"host": host, **NARROW}
    assert route_risk(asked, RouteTable(), (), known_hosts={r.host for r in reached.routes}) == risk


def test_that_another_bottle_reaches_a_look_alike_does_not_make_it_harmless() -> None:
    own, asked = RouteTable((Route("api.example-corp.com"),)), {"host": "api.exarnple-corp.com", **NARROW}
    known = {"api.example-corp.com", "api.exarnple-corp.com"}
    assert route_risk(asked, own, (), known_hosts=known).level is Level.HIGH
    own = RouteTable((Route("api.exarnple-corp.com"),))
    assert route_risk(asked, own, (), known_hosts=known).level is Level.LOW, "reached already"


def test_what_a_dockerfile_does_is_among_the_reasons() -> None:
    risk = image_risk("FROM x:1\nUSER root\n")
    assert "line 2: switches to root" in risk.reasons


def test_a_widening_is_at_least_medium() -> None:
    payload = {"host": "api.example.com", **NARROW}
    assert route_risk(payload, RouteTable(), ["widening: all"]).level is Level.MEDIUM


def test_an_image_is_high() -> None:
    assert image_risk("FROM x").level is Level.HIGH


def test_the_gate_alone_is_low_whether_or_not_a_route_leads_there() -> None:
    kind, payload = PipelockBlock(), {"host": "a.example.com"}
    without = kind.risk(payload, RouteTable(), ["has no route yet"], set())
    routed = kind.risk(payload, RouteTable((Route("a.example.com"),)), (), set())
    assert without.level is routed.level is Level.LOW


@pytest.mark.parametrize(
    ("level", "word"), [(Level.LOW, "low"), (Level.MEDIUM, "medium"), (Level.HIGH, "high")]
)
def test_a_level_has_a_word(level: Level, word: str) -> None:
    assert level.word == word
