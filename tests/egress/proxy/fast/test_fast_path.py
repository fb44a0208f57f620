"""The fast path for simple requests: one that is not simple after all loses nothing by it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.support.proxy_harness import Client, Harness, eventually, get, pinned, request, running_lab

pytestmark = pytest.mark.process
HOST = "api.example.com"
TOKEN = "ghp_" + "a1B2" * 9
WIDE = pinned(HOST, methods=["GET", "HEAD", "OPTIONS", "POST"])


@pytest.fixture
def warm(lab: Harness) -> Client:
    """A connection for which the proxy has a kept connection to the origin at hand."""
    lab.publish("agent-a", [WIDE])
    return warmed(lab)


def warmed(lab: Harness) -> Client:
    client = lab.secured(HOST)
    assert client.ask(get("/first", HOST)).status == 200
    lab.origins.forget()
    return client


def flows(lab: Harness) -> int:
    return int(lab.control("GET", "/status")["bottles"]["agent-a"]["flows"])


def test_a_usual_request_leaves_the_same_record(lab: Harness, warm: Client) -> None:
    assert warm.ask(get("/usual?x=1", HOST, "X-Mine: yes")).json["target"] == "/usual?x=1"
    assert lab.requests[0].values("x-mine") == ["yes"]
    assert lab.origins.connections == []  # a kept one served it
    record = lab.records()[-1]
    assert (record["method"], record["host"], record["path"], record["status"]) == (
        "GET",
        HOST,
        "/usual",
        200,
    )
    assert (record["verdict"], record["route"], record["bytes_in"] > 0) == ("allowed", HOST, True)
    assert record["first_byte_ms"] <= record["duration_ms"]


@pytest.mark.parametrize(
    ("path", "status", "body"),
    [
        ("/chunked", 200, b"hello world"),
        ("/until-close", 200, b"all of it"),
        ("/status/204", 204, b""),
        ("/status/304", 304, b""),
        ("/in-pieces", 200, b"in pieces"),
        ("/two-lengths", 502, None),
        ("/fake-101", 502, None),
        ("/no-answer", 502, None),
        ("/big/1000000", 200, None),
    ],
)
def test_every_kind_of_answer_arrives(warm: Client, path: str, status: int, body: bytes | None) -> None:
    answer = warm.ask(get(path, HOST))
    assert answer.status == status
    assert body is None or answer.body == body


def test_hints_come_before_the_answer(warm: Client) -> None:
    warm.send(get("/hints", HOST))
    assert [warm.answer().status, warm.answer().body] == [103, b"done"]


def test_the_answer_to_head_has_no_body(warm: Client) -> None:
    assert warm.ask(request("HEAD", "/x", HOST)).headers["x-head"] == "yes"
    assert warm.ask(get("/again", HOST)).status == 200


def test_requests_that_pile_up_are_answered_in_order(warm: Client) -> None:
    for number in range(20):
        warm.send(get(f"/n/{number}", HOST))
    assert [warm.answer().json["target"] for _ in range(20)] == [f"/n/{number}" for number in range(20)]


def test_a_refusal_waits_for_its_turn(lab: Harness, warm: Client) -> None:
    warm.send(get("/in-pieces", HOST))
    eventually(lambda: lab.requests, "the first request")
    warm.send(request("DELETE", "/x", HOST))
    assert [warm.answer().status, warm.answer().status] == [200, 403]


def test_a_request_in_two_pieces_is_put_together(warm: Client) -> None:
    message = get("/x", HOST)
    warm.send(message[:10])
    warm.send(message[10:])
    assert warm.answer().json["target"] == "/x"


def test_a_request_with_a_body_is_left_to_the_task(warm: Client) -> None:
    answer = warm.ask(request("POST", "/x", HOST, "Content-Length: 5", body=b"hello"))
    assert answer.json["body"] == "hello"


def test_a_revoke_cuts_it(lab: Harness, warm: Client) -> None:
    warm.send(get("/silent", HOST))
    eventually(lambda: flows(lab) == 1, "the request")
    lab.publish("agent-a", [])
    assert warm.everything() == b""
    assert flows(lab) == 0


def test_a_client_that_leaves_takes_it_along(lab: Harness, warm: Client) -> None:
    warm.send(get("/silent", HOST))
    eventually(lambda: flows(lab) == 1, "the request")
    warm.close()
    eventually(lambda: flows(lab) == 0, "its end")
    eventually(lambda: lab.records()[-1]["path"] == "/silent", "its record")


def test_a_new_table_counts_from_the_next_request(lab: Harness, warm: Client) -> None:
    assert warm.ask(get("/x", HOST)).status == 200
    lab.publish("agent-a", [pinned(HOST, path_allowlist=["/elsewhere"])])
    assert warm.ask(get("/x", HOST)).reason == "path"


def test_a_secret_is_found_in_headers_and_urls_that_were_clean_before(lab: Harness, warm: Client) -> None:
    assert warm.ask(get("/x", HOST, "X-Note: none")).status == 200
    assert warm.ask(get("/x", HOST, f"X-Note: {TOKEN}")).reason == "dlp"
    assert warm.ask(get(f"/x?{TOKEN}", HOST, "X-Note: none")).reason == "dlp"
    assert len(lab.requests) == 1


@pytest.mark.parametrize("name", ["X-HTTP-Method-Override", "X_HTTP_Method", "X-Original-URL", "Forwarded"])
def test_an_override_is_taken_out(lab: Harness, warm: Client, name: str) -> None:
    for _ in range(2):
        warm.ask(get("/x", HOST, f"{name}: DELETE"))
    assert [seen.values(name) for seen in lab.requests] == [[], []]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("DELETE /x HTTP/1.1", "method"),
        ("TRACE /x HTTP/1.1", "method"),
        ("GET /x HTTP/1.0", "bad-version"),
        ("GET  /x HTTP/1.1", "bad-head"),
        ("GET\t/x HTTP/1.1", "bad-head"),
        ("get /x HTTP/1.1", "bad-head"),
        ("GET /x#y HTTP/1.1", "bad-target"),
        ("GET /x\x7f HTTP/1.1", "bad-head"),
        ("GET x HTTP/1.1", "bad-head"),
        ("OPTIONS * HTTP/1.1", "bad-target"),
        ("GET https://other.example.com/x HTTP/1.1", "bad-target"),
        ("GET /x/../y HTTP/1.1", "bad-path"),
        ("GET /x/%2e%2e/y HTTP/1.1", "bad-path"),
        ("GET //x HTTP/1.1", "bad-path"),
        ("GET /x;y HTTP/1.1", "bad-path"),
        (f"GET /x?{TOKEN} HTTP/1.1", "dlp"),
        (f"GET /{TOKEN} HTTP/1.1", "dlp"),
    ],
)
def test_known_headers_vouch_for_no_line(lab: Harness, warm: Client, line: str, reason: str) -> None:
    known = get("/x", HOST)
    assert [warm.ask(known).status, warm.ask(known).status] == [200, 200]
    answer = warm.ask(line.encode() + b"\r\n" + known.partition(b"\r\n")[2])
    assert answer.reason == reason
    assert len(lab.requests) == 2


def test_known_headers_are_searched_again_when_a_secret_is_new(tmp_path: Path) -> None:
    secret = "set-while-it-ran-93b1"
    with running_lab(tmp_path / "h") as lab:
        route = pinned("secret.example.com", auth={"scheme": "Bearer", "token_ref": "LATE"})
        lab.publish("agent-a", [WIDE, route])
        client = warmed(lab)
        assert client.ask(get("/x", HOST, f"X-Note: {secret}")).status == 200
        folder = lab.home / "secrets"
        folder.mkdir(mode=0o700, exist_ok=True)
        (folder / "LATE").touch(0o600)
        (folder / "LATE").write_text(secret)
        stopped = eventually(
            lambda: client.ask(get("/x", HOST, f"X-Note: {secret}")).reason == "dlp", "the new secret"
        )
        assert stopped


def test_the_same_head_answers_a_get_and_a_head(warm: Client) -> None:
    for method in ("GET", "GET", "HEAD", "HEAD", "GET"):
        answer = warm.ask(request(method, "/same-head", HOST))
        assert (answer.headers["content-length"], answer.body) == ("4", b"" if method == "HEAD" else b"here")


def test_a_body_that_answers_a_head_goes_nowhere(warm: Client) -> None:
    for method in ("GET", "GET", "HEAD"):
        assert warm.ask(request(method, "/body-to-all", HOST)).headers["content-length"] == "4"
    assert warm.ask(get("/x", HOST)).json["target"] == "/x"
    assert warm.received.count(b"here") == 2


def test_headers_are_looked_at_again_under_a_new_table(lab: Harness) -> None:
    lab.publish("agent-a", [pinned(HOST, path_allowlist=["/x", "/first"])])
    client, override = warmed(lab), "X-HTTP-Method-Override: DELETE"
    for _ in range(2):
        client.ask(get("/x", HOST, override))
    lab.publish("agent-a", [pinned(HOST, path_allowlist=["/x"], methods=["GET"])])
    client.ask(get("/x", HOST, override))
    seen = [one.values("x-http-method-override") for one in lab.requests]
    assert seen == [["DELETE"], ["DELETE"], []]


def test_an_origin_that_does_not_answer_is_not_waited_for(tmp_path: Path) -> None:
    with running_lab(tmp_path / "h", EGRESS_RESPONSE_SECONDS="2") as lab:
        lab.publish("agent-a", [WIDE])
        answer = warmed(lab).ask(get("/silent", HOST))
        assert (answer.status, answer.reason) == (504, "upstream-timeout")


def test_a_stop_lets_it_finish(tmp_path: Path) -> None:
    with running_lab(tmp_path / "h") as lab:
        lab.publish("agent-a", [WIDE])
        client = warmed(lab)
        client.send(get("/in-pieces", HOST))
        eventually(lambda: lab.requests, "the request")
        lab.process.send_signal(signal.SIGTERM)
        assert client.answer().body == b"in pieces"
        assert lab.process.wait(20) == 0


def test_a_request_under_way_is_searched_once(lab: Harness, warm: Client) -> None:
    """A table that names its header as a secret comes before the answer: it counts for the next request."""
    folder = lab.home / "secrets"
    folder.mkdir(mode=0o700, exist_ok=True)
    (folder / "LATER").touch(0o600)
    (folder / "LATER").write_text("turns-out-to-be-secret")
    fields = ("X-A: turns-out-to-be-secret",)
    assert warm.ask(get("/usual", HOST, *fields)).status == 200
    warm.send(get("/silent", HOST, *fields))
    eventually(lambda: lab.requests[-1].target == "/silent", "the request")
    other = pinned("secret.example.com", auth={"scheme": "Bearer", "token_ref": "LATER"})
    lab.publish("agent-a", [WIDE, other])
    head = b"HTTP/1.1 200 OK\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    lab.origins.speak(HOST, head + b"2\r\nok\r\n0\r\n\r\n")  # and is not kept: it waits for ever
    assert (warm.answer().body, lab.records()[-1]["path"]) == (b"ok", "/silent")
    assert warm.ask(get("/usual", HOST, *fields)).reason == "dlp"
    warm.close()
    eventually(lambda: lab.control("GET", "/status")["connections"] <= 1 + pooled(lab), "nothing is left")


def pooled(lab: Harness) -> int:
    return sum(each["pooled"] for each in lab.control("GET", "/status")["bottles"].values())
