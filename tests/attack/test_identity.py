"""Attempts to be taken for another bottle."""

from __future__ import annotations

import base64

import pytest

from tests.support.proxy_harness import TOKENS, Client, Harness, connect, get

pytestmark = pytest.mark.process


def credentials(slug: str, token: str) -> str:
    return "Proxy-Authorization: Basic " + base64.b64encode(f"{slug}:{token}".encode()).decode()


@pytest.mark.parametrize(
    "header",
    [
        None,
        credentials("agent-a", TOKENS["agent-b"]),
        credentials("agent-b", TOKENS["agent-a"]),
        credentials("agent-a", ""),
        credentials("", TOKENS["agent-a"]),
        credentials("AGENT-A", TOKENS["agent-a"]),
        credentials("agent-a/../agent-b", TOKENS["agent-b"]),
        credentials("agent-a", TOKENS["agent-a"] + "x"),
        credentials("agent-a", TOKENS["agent-a"][:-1]),
        f"Proxy-Authorization: Bearer {TOKENS['agent-a']}",
        f"Authorization: Basic {base64.b64encode(b'agent-a:token-of-a').decode()}",
        "Proxy-Authorization: Basic ???",
        "Proxy-Authorization: Basic",
        "X-Bottle-Identity: agent-a",
    ],
)
def test_tcp_needs_the_bottles_own_token(lab: Harness, header: str | None) -> None:
    for message in (get("http://api.example.com/allowed", "api.example.com"), connect("bare.example.com")):
        sent = message if header is None else message.replace(b"\r\n\r\n", f"\r\n{header}\r\n\r\n".encode())
        assert lab.tcp_client().ask(sent).status == 407
    assert lab.requests == []


def test_two_sets_of_credentials_are_refused(lab: Harness) -> None:
    both = [credentials(slug, token) for slug, token in TOKENS.items()]
    assert lab.tcp_client().ask(get("http://api.example.com/allowed", "api.example.com", *both)).status == 400


def test_a_connection_stays_with_the_bottle_it_began_with(lab: Harness) -> None:
    client = lab.tcp_client()
    first, second = (credentials(slug, token) for slug, token in TOKENS.items())
    assert client.ask(get("http://api.example.com/allowed", "api.example.com", first)).status == 200
    assert client.ask(get("http://other.example.com/x", "other.example.com", second)).status == 407


def test_a_changed_token_ends_what_was_opened_with_the_old_one(lab: Harness) -> None:
    identity = lab.home / "bottles" / "agent-a" / "identity.json"
    kept, own = identity.read_text(), lab.client()
    opened = [opened_with_token(lab, host) for host in ("api.example.com", "bare.example.com")]
    message = get("http://api.example.com/allowed", "api.example.com")
    assert own.ask(message).status == 200
    try:
        identity.write_text(f'{{"slug": "agent-a", "token_sha256": "{"0" * 64}"}}')
        lab.control("POST", "/reload/agent-a")
        assert [client.everything() for client in opened] == [b"", b""]
        assert own.ask(message).status == 200
    finally:
        identity.write_text(kept)
        lab.control("POST", "/reload/agent-a")


def opened_with_token(lab: Harness, host: str) -> Client:
    client = lab.tcp_client()
    header = credentials("agent-a", TOKENS["agent-a"])
    assert client.ask(connect(host).replace(b"\r\n\r\n", f"\r\n{header}\r\n\r\n".encode())).status == 200
    inside = lab.wrap(client, host)
    assert inside.ask(get("/allowed", host)).status == 200
    return inside


@pytest.mark.parametrize(
    "headers",
    [
        (credentials("agent-b", TOKENS["agent-b"]),),
        ("X-Bottle-Identity: agent-b",),
        ("X-Forwarded-For: 127.0.0.1", "X-Real-IP: 127.0.0.1", "Forwarded: for=agent-b"),
        (f"Authorization: Bearer {TOKENS['agent-b']}",),
    ],
)
def test_on_a_socket_nothing_that_is_sent_changes_who_it_is(lab: Harness, headers: tuple[str, ...]) -> None:
    answer = lab.client("agent-a").ask(get("http://other.example.com/x", "other.example.com", *headers))
    assert (answer.status, answer.reason) == (403, "no-route")
    told = lab.client("agent-a").ask(get("http://_egress.local/health", "_egress.local", *headers)).json
    assert told["bottle"] == "agent-a"


def test_one_bottles_routes_are_not_anothers(lab: Harness) -> None:
    for host in ("api.example.com", "bare.example.com", "secret.example.com"):
        assert lab.secured(host, slug="agent-b").ask(get("/allowed", host)).reason == "no-route"
    assert lab.requests == []


def test_the_control_socket_is_for_the_operator_alone(lab: Harness) -> None:
    assert (lab.home / "run" / "egress.sock").stat().st_mode & 0o777 == 0o600
    assert (lab.home / "run").stat().st_mode & 0o777 == 0o700
    assert (lab.home / "bottles" / "agent-a" / "ca-key.pem").stat().st_mode & 0o777 == 0o600
