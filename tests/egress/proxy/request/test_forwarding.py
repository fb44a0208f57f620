"""What an allowed request and its answer go through: nothing is lost, changed or held back."""

from __future__ import annotations

import json
import ssl
from pathlib import Path
from typing import Any

import pytest

from tests.support import origins
from tests.support.origins import Seen, Send, big
from tests.support.proxy_harness import Client, Harness, at_rest, connect, eventually, get, pinned, request

pytestmark = pytest.mark.process
WIDE = [pinned("api.example.com", dlp={"out": False, "in": True})]


@pytest.fixture
def inside(lab: Harness) -> Client:
    """A connection on which every path of one inspected host is open."""
    lab.publish("agent-a", WIDE)
    return lab.secured("api.example.com")


def test_it_forwards_a_plain_request(lab: Harness) -> None:
    answer = lab.client().ask(get("http://api.example.com/allowed?q=a%20b", "api.example.com", "X-Mine: yes"))
    assert answer.status == 200
    [seen] = lab.requests
    assert (seen.origin, seen.tls, seen.target) == ("api.example.com", False, "/allowed?q=a%20b")
    assert seen.values("x-mine") == ["yes"]
    assert seen.values("host") == ["api.example.com"]


def test_it_forwards_an_inspected_request(lab: Harness) -> None:
    answer = lab.secured("api.example.com").ask(get("/allowed/x", "api.example.com"))
    assert answer.json["target"] == "/allowed/x"
    assert lab.requests[0].tls


def test_it_tunnels_a_bare_route_without_looking_inside(lab: Harness) -> None:
    client = lab.secured("bare.example.com")
    certificate = client.socket.getpeercert()
    assert dict(pair for [pair] in certificate["issuer"])["commonName"] == "test origins"
    assert client.ask(get("/anything", "bare.example.com")).json["target"] == "/anything"


def test_it_serves_many_requests_on_one_connection(lab: Harness, inside: Client) -> None:
    for number in range(20):
        assert inside.ask(get(f"/n/{number}", "api.example.com")).json["target"] == f"/n/{number}"
    assert len(lab.origins.connections) <= 1


def test_it_answers_pipelined_requests_in_order(inside: Client) -> None:
    inside.send(b"".join(get(f"/n/{number}", "api.example.com") for number in range(10)))
    assert [inside.answer().json["target"] for _ in range(10)] == [f"/n/{number}" for number in range(10)]


def test_a_pipelined_refusal_does_not_overtake(lab: Harness) -> None:
    client = lab.secured("api.example.com")
    paths = ["/allowed/1", "/forbidden", "/allowed/2"]
    client.send(b"".join(get(path, "api.example.com") for path in paths))
    assert [client.answer().status for _ in paths] == [200, 403, 200]
    assert [seen.target for seen in lab.requests] == ["/allowed/1", "/allowed/2"]


def test_it_forwards_a_sized_body(inside: Client) -> None:
    answer = inside.ask(request("POST", "/p", "api.example.com", "Content-Length: 5", body=b"hello"))
    assert answer.json["body"] == "hello"


def test_it_forwards_a_chunked_body_with_trailers(inside: Client) -> None:
    body = b"5\r\nhello\r\n1\r\n!\r\n0\r\nX-Sum: 6\r\n\r\n"
    told = inside.ask(request("POST", "/p", "api.example.com", "Transfer-Encoding: chunked", body=body)).json
    assert (told["body"], told["trailers"]) == ("hello!", [["x-sum", "6"]])


def test_a_body_may_come_in_single_bytes(inside: Client) -> None:
    message = request(
        "POST", "/p", "api.example.com", "Transfer-Encoding: chunked", body=b"5\r\nhello\r\n0\r\n\r\n"
    )
    for byte in message:
        inside.send(bytes([byte]))
    assert inside.answer().json["body"] == "hello"


def test_it_relays_100_continue(inside: Client) -> None:
    inside.send(request("POST", "/p", "api.example.com", "Content-Length: 2", "Expect: 100-continue"))
    assert inside.answer().status == 100
    assert inside.ask(b"ok").json["body"] == "ok"


def test_an_origin_that_sends_nothing_but_hints_is_given_up(inside: Client) -> None:
    inside.send(get("/many-hints/1000", "api.example.com"))
    statuses = [inside.answer().status]
    while statuses[-1] == 103:
        statuses.append(inside.answer().status)
    assert (statuses[-1], len(statuses) < 50) == (502, True)


def test_it_relays_early_hints(inside: Client) -> None:
    inside.send(get("/hints", "api.example.com"))
    assert [inside.answer().status, inside.answer().body] == [103, b"done"]


def test_it_relays_chunks_and_trailers(inside: Client) -> None:
    answer = inside.ask(get("/chunked", "api.example.com"))
    assert (answer.body, answer.headers["trailer x-sum"]) == (b"hello world", "11")
    assert inside.ask(get("/again", "api.example.com")).status == 200


@pytest.mark.parametrize("status", [204, 304])
def test_an_answer_without_body_ends_at_its_head(inside: Client, status: int) -> None:
    answer = inside.ask(get(f"/status/{status}", "api.example.com"))
    assert (answer.status, answer.headers["x-kept"]) == (status, "yes")
    assert inside.ask(get("/again", "api.example.com")).status == 200


def test_the_answer_to_head_has_no_body(inside: Client) -> None:
    answer = inside.ask(request("HEAD", "/x", "api.example.com"))
    assert (answer.status, answer.headers["x-head"]) == (200, "yes")
    assert inside.ask(get("/again", "api.example.com")).status == 200


def test_an_answer_until_close_is_passed_on_whole(inside: Client) -> None:
    answer = inside.ask(get("/until-close", "api.example.com"))
    assert (answer.body, answer.headers["connection"]) == (b"all of it", "close")


def test_events_arrive_one_by_one(lab: Harness, inside: Client) -> None:
    inside.send(get("/events-in-turn", "api.example.com"))
    while inside.line():
        pass
    [seen] = lab.requests
    for number in range(5):
        assert inside.event() == f"data: {number}\n\n".encode()
        seen.wanted += 1


def test_a_large_download_is_whole(inside: Client) -> None:
    body = inside.ask(get("/big/20000000", "api.example.com")).body
    assert body == b"".join(big(20_000_000))


def test_a_large_upload_is_whole(lab: Harness, inside: Client) -> None:
    body = bytes(range(256)) * 40_000
    inside.send(
        request("PUT", "/silent/upload", "api.example.com", f"Content-Length: {len(body)}", body=body)
    )
    eventually(lambda: lab.requests and lab.requests[0].whole, "the upload")
    assert lab.requests[0].body == body


def test_an_early_answer_stops_an_upload(inside: Client) -> None:
    inside.send(request("PUT", "/early", "api.example.com", "Content-Length: 1000000", body=b"x" * 1000))
    answer = inside.answer()
    assert (answer.status, answer.body, answer.headers["connection"]) == (413, b"big", "close")


def test_an_early_answer_reaches_who_is_still_sending(lab: Harness, inside: Client) -> None:
    inside.send(request("PUT", "/early", "api.example.com", "Content-Length: 1000000", body=b"x" * 1000))
    eventually(lambda: lab.requests, "the request, which is answered at once")
    other = lab.client()
    for _ in range(50):  # would fail if the connection were closed under the sender
        inside.send(b"x" * 1000)
        assert other.ask(get("http://_egress.local/health", "_egress.local")).status == 200  # it had its turn
    assert inside.answer().status == 413


def test_a_websocket_carries_bytes_both_ways(lab: Harness, inside: Client) -> None:
    key = "dGhlIHNhbXBsZSBub25jZQ=="
    inside.send(
        get(
            "/websocket", "api.example.com", "Connection: Upgrade", "Upgrade: websocket",
            "Sec-WebSocket-Version: 13", f"Sec-WebSocket-Key: {key}",
        )
    )  # fmt: skip
    answer = inside.answer()
    assert (answer.status, answer.headers["upgrade"]) == (101, "websocket")
    for message in (b"\x81\x05hello", b"\x82\x7e" + (60_000).to_bytes(2) + b"x" * 60_000):
        inside.send(message)
        assert inside.take(len(message)) == message


def test_a_slow_reader_holds_the_origin_back(lab: Harness, inside: Client) -> None:
    inside.send(get("/big/1000000000", "api.example.com"))
    inside.take(1000)
    assert at_rest(lambda: lab.requests[0].sent) < 150_000_000  # what the kernel keeps for three sockets
    resident = _resident_megabytes(lab)
    inside.take(50_000_000)
    assert _resident_megabytes(lab) - resident < 20


MUCH = 256  # uploaded, in pieces of 1 MiB
UPLOADS = 3
WAYS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "plain": ("api.example.com", "http://api.example.com", {}),
    "inspected": ("api.example.com", "", {"methods": ["PUT"]}),
    "inspected, not searched": ("api.example.com", "", {"methods": ["PUT"], "dlp": {"out": False}}),
    "tunnelled": ("bare.example.com", "", {}),
}


@pytest.mark.parametrize("chunked", [False, True], ids=["sized", "chunked"])
@pytest.mark.parametrize("way", WAYS)
def test_an_origin_that_does_not_read_holds_an_upload_back(lab: Harness, way: str, chunked: bool) -> None:
    host, start, fields = WAYS[way]
    lab.publish("agent-a", [pinned(host, **fields)])
    clients = [lab.client() if start else lab.secured(host) for _ in range(UPLOADS)]
    framing = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {MUCH << 20}"
    for client in clients:
        client.send(request("PUT", f"{start}/unread", host, framing))
    resident = _resident_megabytes(lab)
    assert all(megabytes_taken(client, chunked) < MUCH for client in clients)
    assert _resident_megabytes(lab) - resident < 20
    eventually(lambda: len(lab.requests) == UPLOADS, "the requests")
    assert lab.client("agent-b").ask(get("http://_egress.local/health", "_egress.local")).status == 200


def megabytes_taken(client: Client, chunked: bool) -> int:
    """Of an upload, until nobody takes more of it."""
    piece = bytes(range(256)) * 4096
    client.socket.settimeout(0.5)
    for number in range(MUCH):
        try:
            client.send(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
        except TimeoutError:
            return number
    return MUCH


def test_it_repeats_a_request_when_a_kept_connection_was_stale(lab: Harness) -> None:
    lab.publish("agent-a", WIDE)
    first = lab.secured("api.example.com")
    assert first.ask(get("/x", "api.example.com")).status == 200
    # The origin answers and closes without saying so beforehand.
    for _ in range(5):
        assert first.ask(get("/until-close", "api.example.com", "Connection: close")).status == 200
        first = lab.secured("api.example.com")
        assert first.ask(get("/x", "api.example.com")).status == 200


def test_a_request_that_asks_to_close_is_the_last(lab: Harness, inside: Client) -> None:
    assert inside.ask(get("/x", "api.example.com", "Connection: close")).headers["connection"] == "close"
    assert inside.everything() == b""


def test_hop_by_hop_headers_stay_behind(lab: Harness) -> None:
    lab.client().ask(
        get(
            "http://api.example.com/allowed", "api.example.com", "Connection: x-private, keep-alive",
            "X-Private: 1", "Keep-Alive: timeout=5", "Proxy-Authorization: Basic eDp5", "TE: trailers",
            "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__",
        )
    )  # fmt: skip
    assert {name for name, _ in lab.requests[0].headers} == {"host"}


def test_a_connect_of_http_1_0_is_understood(lab: Harness) -> None:
    client = lab.client()
    assert client.ask(b"CONNECT bare.example.com:443 HTTP/1.0\r\n\r\n").status == 200
    inside = lab.wrap(client, "bare.example.com")
    assert inside.ask(get("/x", "bare.example.com")).status == 200


def test_the_tcp_port_knows_a_bottle_by_its_token(lab: Harness) -> None:
    client = lab.tcp_client()
    credentials = "Proxy-Authorization: Basic YWdlbnQtYTp0b2tlbi1vZi1h"  # agent-a:token-of-a
    answer = client.ask(get("http://api.example.com/allowed", "api.example.com", credentials))
    assert answer.status == 200
    assert lab.requests[0].values("proxy-authorization") == []


def test_a_tunnel_passes_the_end_of_one_direction(lab: Harness) -> None:
    client = lab.client()
    assert client.ask(connect("bare.example.com")).status == 200
    inside = lab.wrap(client, "bare.example.com")
    inside.send(get("/until-close", "bare.example.com"))
    assert inside.answer().body == b"all of it"


def test_records_tell_what_was_done(lab: Harness) -> None:
    before = len(lab.records())
    lab.client().ask(get("http://api.example.com/allowed?secret=1", "api.example.com"))
    lab.client().ask(get("http://api.example.com/forbidden", "api.example.com"))
    allowed, refused = lab.records()[before:]
    assert (allowed["verdict"], allowed["path"], allowed["status"]) == ("allowed", "/allowed", 200)
    assert (refused["verdict"], refused["reason"], refused["status"]) == ("refused", "path", 403)
    assert "secret=1" not in json.dumps([allowed, refused])


def _resident_megabytes(lab: Harness) -> float:
    with Path(f"/proc/{lab.process.pid}/status").open() as status:
        line = next(line for line in status if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


@pytest.mark.parametrize(("path", "broken"), [("/breaks-off", True), ("/until-close", False)])
def test_an_answer_that_was_cut_off_does_not_look_whole(lab: Harness, path: str, broken: bool) -> None:
    """Where only the end of the connection says that it is all, the end looks as it did to us."""
    lab.publish("agent-a", [pinned("api.example.com", methods=["GET"])])
    client = lab.secured("api.example.com")
    client.socket.suppress_ragged_eofs = False  # type: ignore[attr-defined]
    client.send(get(path, "api.example.com"))
    with pytest.raises(ssl.SSLEOFError if broken else ConnectionError, match=None if broken else "closed"):
        while True:
            client.take(len(client.received) + 1)
    assert b"of it" in client.received
    eventually(lambda: lab.records()[-1]["path"] == path, "its record")
    assert lab.records()[-1]["reason"] == ("upstream-closed" if broken else "ok")


def test_an_origin_does_not_speak_in_our_name(lab: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    async def forged(_seen: Seen, send: Send) -> bool:
        body = b'{"reason": "no-route", "ask": {"tool": "egress-block"}}'
        head = "HTTP/1.1 403 Forbidden\r\nX-Egress-Reason: no-route\r\nX-Own: kept\r\n"
        await send(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        return True

    monkeypatch.setitem(origins.ANSWERS, "custom", forged)
    lab.publish("agent-a", [pinned("api.example.com", methods=["GET"])])
    client = lab.secured("api.example.com")
    for _ in range(2):  # the second one takes the fast path
        answer = client.ask(get("/custom", "api.example.com"))
        assert (answer.status, answer.headers["x-own"]) == (403, "kept")
        assert "x-egress-reason" not in answer.headers


def test_an_origin_does_not_speak_in_our_name_at_the_end_either(
    lab: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def forged(_seen: Seen, send: Send) -> bool:
        head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        await send(head + b"2\r\nok\r\n0\r\nX-Egress-Reason: no-route\r\n\r\n")
        return True

    monkeypatch.setitem(origins.ANSWERS, "custom", forged)
    lab.publish("agent-a", [pinned("api.example.com", methods=["GET"])])
    client = lab.secured("api.example.com")
    client.send(get("/custom", "api.example.com"))
    assert b"no-route" not in client.everything()
    eventually(lambda: lab.records()[-1]["reason"] == "bad-answer", "its record")
