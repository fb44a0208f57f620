"""The HTTP rules of the agent plane."""

from __future__ import annotations

import pytest

from supervise.mcp import http_checks
from supervise.mcp.jsonrpc import ProtocolError

LOOPBACK = "127.0.0.1"


@pytest.mark.parametrize(
    ("host", "bind"),
    [
        ("localhost", LOOPBACK),
        ("LOCALHOST:9100", LOOPBACK),
        ("127.0.0.1:9100", LOOPBACK),
        ("127.0.0.2", LOOPBACK),
        ("[::1]:9100", LOOPBACK),
        ("supervise", LOOPBACK),
        ("supervise:80", LOOPBACK),
        ("10.1.2.3:9100", "10.1.2.3"),
        ("bottles.internal", "bottles.internal"),
        ("192.168.0.7:9100", "0.0.0.0"),
        ("[fd00::1]:9100", "::"),
    ],
)
def test_it_serves_its_own_names(host: str, bind: str) -> None:
    http_checks.check_host({"host": host}, bind)


@pytest.mark.parametrize(
    ("host", "bind"),
    [
        ("", LOOPBACK),
        ("evil.example.com", LOOPBACK),
        ("evil.example.com:9100", "0.0.0.0"),
        ("localhost.evil.example.com", LOOPBACK),
        ("127.0.0.1.evil.example.com", LOOPBACK),
        ("192.168.0.7", LOOPBACK),
        ("localhost@evil.example.com", LOOPBACK),
        ("evil.example.com#localhost", LOOPBACK),
        ("localhost/evil", LOOPBACK),
        ("[::1", LOOPBACK),
    ],
)
def test_it_refuses_a_foreign_host(host: str, bind: str) -> None:
    with pytest.raises(ProtocolError) as refusal:
        http_checks.check_host({"host": host}, bind)
    assert refusal.value.http_status == 403


@pytest.mark.parametrize("host", ["agents.example.com", "Agents.Example.com:443", "192.168.0.7:9100"])
def test_it_serves_the_names_that_the_operator_gave_it(host: str) -> None:
    names = ["agents.example.com", "192.168.0.7"]
    http_checks.check_host({"host": host}, LOOPBACK, names)
    http_checks.check_origin({"origin": f"https://{host}"}, LOOPBACK, names)
    for refuses, header in ((http_checks.check_host, "host"), (http_checks.check_origin, "origin")):
        with pytest.raises(ProtocolError):
            refuses({header: "http://x.agents.example.com"}, LOOPBACK, names)


@pytest.mark.parametrize("origin", ["http://localhost", "http://127.0.0.1:9100", "https://[::1]:1"])
def test_it_accepts_its_own_origin(origin: str) -> None:
    http_checks.check_origin({"origin": origin}, LOOPBACK)
    http_checks.check_origin({}, LOOPBACK)


@pytest.mark.parametrize(
    "origin",
    ["null", "", "http://evil.example.com", "https://localhost.evil.example.com", "file://", "localhost"],
)
def test_it_refuses_a_foreign_origin(origin: str) -> None:
    with pytest.raises(ProtocolError) as refusal:
        http_checks.check_origin({"origin": origin}, LOOPBACK)
    assert refusal.value.http_status == 403


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 400),
        ({"content-length": ""}, 400),
        ({"content-length": "ten"}, 400),
        ({"content-length": "-1"}, 400),
        ({"content-length": "+5"}, 400),
        ({"content-length": "1.0"}, 400),
        ({"content-length": "5, 5"}, 400),
        ({"content-length": "٥"}, 400),
        ({"content-length": "101"}, 413),
        ({"content-length": "9" * 5000}, 413),
    ],
)
def test_it_refuses_a_missing_bad_or_large_length(headers: dict[str, str], status: int) -> None:
    with pytest.raises(ProtocolError) as refusal:
        http_checks.check_length(headers, 100)
    assert refusal.value.http_status == status


@pytest.mark.parametrize("headers", [{"content-length": "100"}, {"transfer-encoding": "chunked"}])
def test_it_accepts_a_length_or_chunks(headers: dict[str, str]) -> None:
    http_checks.check_length(headers, 100)


@pytest.mark.parametrize(
    ("content_type", "accepted"),
    [
        ("application/json", True),
        ("Application/JSON; charset=utf-8", True),
        ("text/plain", False),
        ("application/x-www-form-urlencoded", False),
        ("application/jsonp", False),
        ("", False),
    ],
)
def test_it_takes_only_json(content_type: str, accepted: bool) -> None:
    if accepted:
        http_checks.check_content_type({"content-type": content_type})
    else:
        with pytest.raises(ProtocolError) as refusal:
            http_checks.check_content_type({"content-type": content_type})
        assert refusal.value.http_status == 415


@pytest.mark.parametrize(
    ("accept", "json", "sse"),
    [
        ("application/json, text/event-stream", True, True),
        ("text/event-stream, application/json", True, True),
        ("application/json", True, False),
        ("text/event-stream", False, True),
        ("*/*", True, False),
        ("application/*", True, False),
        ("text/*", False, True),
        ("Application/JSON;q=0.5, TEXT/EVENT-STREAM;q=0.9", True, True),
        ("application/json, text/event-stream;q=0", True, False),
        ("*/*, application/json;q=0, text/event-stream", False, True),
        ("application/json;q=high", True, False),
    ],
)
def test_it_reads_what_the_client_accepts(accept: str, json: bool, sse: bool) -> None:
    assert http_checks.accepted({"accept": accept}) == http_checks.Accepted(json=json, sse=sse)


def test_a_client_that_says_nothing_gets_json() -> None:
    assert http_checks.accepted({}) == http_checks.Accepted(json=True, sse=False)


@pytest.mark.parametrize("accept", ["text/html", "", "application/json;q=0", "image/*"])
def test_it_refuses_a_client_that_reads_neither(accept: str) -> None:
    with pytest.raises(ProtocolError) as refusal:
        http_checks.accepted({"accept": accept})
    assert refusal.value.http_status == 406
