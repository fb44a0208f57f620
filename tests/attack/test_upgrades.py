"""Attempts to turn an inspected connection into an open pipe."""

from __future__ import annotations

import pytest

from tests.attack.conftest import Allowed
from tests.support.proxy_harness import Harness, get, pinned, request

pytestmark = pytest.mark.process
WEBSOCKET = (
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
)
HIDDEN = get("/forbidden", "api.example.com")


@pytest.mark.parametrize("path", ["/websocket", "/allowed/../websocket", "/allowed/..%2fwebsocket"])
def test_a_websocket_needs_an_allowed_path(lab: Harness, path: str) -> None:
    assert lab.secured("api.example.com").ask(get(path, "api.example.com", *WEBSOCKET)).status in (400, 403)
    assert lab.requests == []


@pytest.mark.parametrize(
    "headers",
    [
        ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__"),
        ("Connection: Upgrade", "Upgrade: h2c, websocket"),
        ("Connection: Upgrade", "Upgrade: tls/1.0"),
        ("Upgrade: websocket", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="),
        ("Connection: Upgrade", "Upgrade: connect-udp"),
    ],
)
def test_other_upgrades_never_reach_the_origin(lab: Harness, headers: tuple[str, ...]) -> None:
    answer = lab.secured("api.example.com").ask(get("/allowed", "api.example.com", *headers))
    assert answer.status == 200
    assert lab.requests[0].values("upgrade") == []
    assert lab.requests[0].values("connection") == []


def test_two_upgrade_headers_are_refused(lab: Harness) -> None:
    answer = lab.secured("api.example.com").ask(
        get("/allowed", "api.example.com", *WEBSOCKET, "Upgrade: h2c")
    )
    assert answer.status == 400


@pytest.mark.parametrize("path", ["/fake-101", "/fake-accept"])
@pytest.mark.parametrize("headers", [(), WEBSOCKET], ids=["unasked", "asked"])
def test_a_false_101_opens_nothing(
    lab: Harness, allowed: Allowed, path: str, headers: tuple[str, ...]
) -> None:
    allowed["api.example.com"] = (path,)
    lab.publish("agent-a", [pinned("api.example.com", methods=["GET"])])
    client = lab.secured("api.example.com")
    assert client.ask(get(path, "api.example.com", *headers) + HIDDEN).status == 502
    assert b"raw pipe" not in lab.received()


def test_a_websocket_with_a_body_is_an_ordinary_request(lab: Harness) -> None:
    message = request("POST", "/allowed", "api.example.com", *WEBSOCKET, "Content-Length: 5", body=b"hello")
    assert lab.secured("api.example.com").ask(message).status == 200
    assert lab.requests[0].values("upgrade") == []


def test_a_refused_websocket_keeps_the_connection_under_the_rules(lab: Harness) -> None:
    client = lab.secured("api.example.com")
    assert client.ask(get("/allowed", "api.example.com", *WEBSOCKET)).status == 200  # not switched
    assert client.ask(HIDDEN).status == 403
