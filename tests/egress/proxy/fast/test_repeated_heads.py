"""Heads that come again, byte for byte, on one connection or another: none of them vouches for the next."""

from __future__ import annotations

import pytest

from botbottle.backends import secret_variables
from tests.support.proxy_harness import Client, Harness, get, pinned, request

HOST, OTHER = "api.example.com", "other.example.com"
TOKEN = "ghp_" + "a1B2" * 9
NOTE = "X-Note: the same each time"


@pytest.fixture
def known(lab: Harness) -> bytes:
    """A request whose fields were read on a connection that is gone."""
    lab.publish("agent-a", [pinned(HOST, methods=["GET"]), pinned(OTHER, methods=["GET"])])
    asked = get("/x", HOST, NOTE)
    client = lab.secured(HOST)
    assert [client.ask(asked).status for _ in range(3)] == [200, 200, 200]
    client.close()
    lab.origins.forget()
    return asked


def on_another(lab: Harness, asked: bytes, host: str = HOST) -> Client:
    client = lab.secured(host)
    client.send(asked)
    return client


def test_a_new_connection_sends_and_answers_the_same(lab: Harness, known: bytes) -> None:
    for _ in range(3):
        assert on_another(lab, known).answer().json["target"] == "/x"
    assert [seen.values("x-note") for seen in lab.requests] == [["the same each time"]] * 3
    assert lab.origins.connections == []  # the kept one served them all
    assert [record["path"] for record in lab.records()[-3:]] == ["/x"] * 3


def test_what_is_known_of_one_host_is_not_true_of_another(lab: Harness, known: bytes) -> None:
    assert on_another(lab, known, OTHER).answer().reason == "host-mismatch"
    assert lab.requests == []


def test_a_new_table_counts_for_the_next_connection(lab: Harness, known: bytes) -> None:
    lab.publish("agent-a", [pinned(HOST, path_allowlist=["/elsewhere"])])
    assert on_another(lab, known).answer().reason == "path"
    lab.publish("agent-a", [])
    assert on_another(lab, known).answer().reason == "no-route"
    assert lab.requests == []


@pytest.mark.parametrize(
    ("target", "secret"), [("/x", "the same each time"), ("/x?known-before", "known-before")]
)
def test_a_secret_handed_meanwhile_is_found_in_what_was_clean(
    lab: Harness, known: bytes, target: str, secret: str
) -> None:
    asked = get(target, HOST, NOTE)
    assert [on_another(lab, asked).answer().status for _ in range(2)] == [200, 200]
    lab.origins.forget()
    run = lab.home / "bottles" / "agent-a" / "run"
    secret_variables.add(run, {"VARIABLE": secret})
    try:
        assert [on_another(lab, asked).answer().reason for _ in range(2)] == ["dlp", "dlp"]
    finally:
        secret_variables.forget(run)
    assert lab.requests == []


def test_a_known_answer_to_get_is_none_to_head(lab: Harness) -> None:
    lab.publish("agent-a", [pinned(HOST, methods=["GET", "HEAD"])])
    for method in ("GET", "GET", "HEAD", "HEAD", "GET", "HEAD", "GET"):
        answer = lab.secured(HOST).ask(request(method, "/same-head", HOST))
        assert (answer.headers["content-length"], answer.body) == ("4", b"" if method == "HEAD" else b"here")


def test_a_bottle_of_the_same_name_begins_anew(lab: Harness, known: bytes) -> None:
    files = lab.home / "bottles" / "agent-a"
    identity = (files / "identity.json").read_text()
    for name in ("identity.json", "routes.yaml", "gate.yaml"):
        (files / name).unlink()
    lab.control("POST", "/reload/agent-a")
    (files / "identity.json").write_text(identity)
    lab.publish("agent-a", [pinned(OTHER)])
    assert on_another(lab, known).answer().reason == "no-route"
    assert lab.requests == []


def test_another_bottle_has_its_own(lab: Harness, known: bytes) -> None:
    client = lab.secured(HOST, slug="agent-b")
    assert client.ask(known).reason == "no-route"
    assert lab.requests == []


@pytest.mark.parametrize(
    ("line", "reason"),
    [("DELETE /x", "method"), ("GET /x/../y", "bad-path"), (f"GET /x?{TOKEN}", "dlp"), ("GET x", "bad-head")],
)
def test_known_fields_vouch_for_no_line(lab: Harness, known: bytes, line: str, reason: str) -> None:
    assert on_another(lab, known).answer().status == 200
    asked = f"{line} HTTP/1.1\r\n".encode() + known.partition(b"\r\n")[2]
    assert on_another(lab, asked).answer().reason == reason
    assert len(lab.requests) == 1


def test_what_differs_in_one_byte_is_searched(lab: Harness, known: bytes) -> None:
    assert on_another(lab, known.replace(NOTE.encode(), f"X-Note: {TOKEN}".encode())).answer().reason == "dlp"
    assert lab.requests == []
