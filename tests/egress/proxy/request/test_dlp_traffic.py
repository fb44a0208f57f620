"""Secrets do not leave: real process, real connections, origins that note every byte."""

from __future__ import annotations

import base64
import gzip
import json
import random
import zlib
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import brotli
import pytest
import zstandard

from egress.dlp.scanner import memory_of_scan
from tests.support.git_packs import Pack, named
from tests.support.proxy_harness import SECRET, Client, Harness, connect, eventually, get, pinned, request
from tests.support.token_examples import EXAMPLES

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("canary_stays")]
TOKEN = EXAMPLES["github-token"]
ROUTES = [
    pinned("api.example.com", methods=["GET", "POST", "PUT"]),
    pinned("secret.example.com", auth={"scheme": "Bearer", "token_ref": "CANARY"}),
    pinned("*.bare.example.com"),
]
DISGUISES: dict[str, Callable[[str], str]] = {
    "plain": str,
    "url": lambda secret: quote(secret, safe="").replace("-", "%2d"),
    "hex": lambda secret: secret.encode().hex(),
    "HEX": lambda secret: secret.encode().hex().upper(),
    "base64": lambda secret: base64.b64encode(secret.encode()).decode(),
    "base64, one on": lambda secret: base64.b64encode(b"x" + secret.encode()).decode(),
    "base64, two on": lambda secret: base64.b64encode(b"xy" + secret.encode()).decode(),
}
AS = pytest.mark.parametrize("disguise", DISGUISES)
PACKED: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": lambda data: brotli.compress(data, quality=5),
    "zstd": zstandard.compress,
}
PACKED_UNANNOUNCED: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "gzip in gzip": lambda data: gzip.compress(gzip.compress(data)),
}


@pytest.fixture
def api(lab: Harness) -> Client:
    lab.publish("agent-a", ROUTES)
    return lab.secured("api.example.com")


class Stopped:
    """Checks that a request was stopped, and that it is on record as such."""

    def __init__(self, lab: Harness) -> None:
        self._lab = lab
        self._before = len(lab.records())

    def __call__(self, client: Client, message: bytes, kind: str, where: str, **more: str) -> None:
        answer = client.ask(message)
        assert (answer.status, answer.reason) == (403, "dlp")
        assert (answer.json["kind"], answer.json["where"]) == (kind, where)
        assert self._lab.requests == []
        client.close()
        record = self.record()
        assert (record["verdict"], record["status"]) == ("refused", 403)
        assert record["finding"] == {"kind": kind, "where": where, **more}

    def record(self) -> dict[str, Any]:
        return dict(eventually(self._new, "the record")[-1])

    def _new(self) -> list[dict[str, Any]]:
        return [record for record in self._lab.records()[self._before :] if record["reason"] == "dlp"]


@pytest.fixture
def stopped(lab: Harness) -> Stopped:
    return Stopped(lab)


def post(body: bytes, *headers: str, host: str = "api.example.com") -> bytes:
    return request("POST", "/in", host, f"Content-Length: {len(body)}", *headers, body=body)


def chunked_post(body: bytes, size: int, *headers: str, trailer: str = "") -> bytes:
    starts = range(0, len(body), size)
    chunks = [b"%x\r\n%b\r\n" % (len(body[at : at + size]), body[at : at + size]) for at in starts]
    coded = b"".join(chunks) + b"0\r\n" + trailer.encode() + b"\r\n"
    return request("POST", "/in", "api.example.com", "Transfer-Encoding: chunked", *headers, body=coded)


@AS
def test_a_secret_does_not_leave_in_a_url(stopped: Stopped, api: Client, disguise: str) -> None:
    stopped(api, get(f"/in?q={DISGUISES[disguise](SECRET)}", "api.example.com"), "provisioned-secret", "url")


@AS
@pytest.mark.parametrize("host", ["api.example.com", "unknown.example.com"])
def test_a_secret_in_a_path_is_not_repeated(lab: Harness, stopped: Stopped, disguise: str, host: str) -> None:
    """Not to the agent, not in a tool call that would ask for it, not in the record."""
    lab.publish("agent-a", ROUTES)
    client = lab.secured(host)
    answer = client.ask(get(f"/in/{DISGUISES[disguise](SECRET)}/x".replace("%2d", "-"), host))
    assert (answer.reason, answer.json["path"], "ask" in answer.json) == ("dlp", "(concealed)", False)
    assert stopped.record()["path"] == "(concealed)"
    assert client.ask(get("/in", host)).reason != "dlp"  # and the connection is still good


def test_a_token_in_an_unsearched_path_is_not_on_record(lab: Harness) -> None:
    lab.publish("agent-a", [pinned("api.example.com", path_allowlist=["/in"], dlp={"out": False})])
    before = len(lab.records())
    client = lab.secured("api.example.com")
    for target in (f"/in/{TOKEN}", f"/elsewhere/{TOKEN}"):
        client.ask(get(target, "api.example.com"))
    client.close()
    records = eventually(lambda: len(lab.records()) >= before + 2 and lab.records()[before:], "two records")
    assert TOKEN not in json.dumps(records)
    assert [record["path"] for record in records if record["method"] == "GET"] == ["(concealed)"] * 2


@AS
def test_a_secret_does_not_leave_in_a_header(stopped: Stopped, api: Client, disguise: str) -> None:
    message = get("/in", "api.example.com", f"X-Note: {DISGUISES[disguise](SECRET)}")
    stopped(api, message, "provisioned-secret", "header")


@AS
def test_a_secret_does_not_leave_in_a_body(stopped: Stopped, api: Client, disguise: str) -> None:
    body = f"a=1&b={DISGUISES[disguise](SECRET)}&c=2".encode()
    stopped(api, post(body), "provisioned-secret", "body")


@pytest.mark.parametrize("before", ["", "text/plain, ", "text/plain;", " "])
def test_a_secret_does_not_leave_in_what_may_be_a_form(stopped: Stopped, api: Client, before: str) -> None:
    body = f"a={''.join(f'%{ord(letter):x}' if at % 2 else letter for at, letter in enumerate(SECRET))}"
    message = post(body.encode(), f"Content-Type: {before}application/x-www-form-urlencoded")
    stopped(api, message, "provisioned-secret", "body")


@pytest.mark.parametrize(
    ("query", "header", "body"),
    [(f"?q={SECRET}", "A: b", b""), ("", f"{SECRET}: x", b""), ("", "A: b", SECRET.encode())],
)
def test_a_secret_does_not_leave_over_plain_http(
    lab: Harness, api: Client, query: str, header: str, body: bytes
) -> None:
    target, length = f"http://api.example.com/in{query}", f"Content-Length: {len(body)}"
    answer = lab.client().ask(request("POST", target, "api.example.com", header, length, body=body))
    assert answer.reason == "dlp"
    assert lab.requests == []


def test_a_secret_does_not_leave_to_its_own_host_either(lab: Harness, stopped: Stopped) -> None:
    lab.publish("agent-a", ROUTES)
    message = post(SECRET.encode(), host="secret.example.com")
    stopped(lab.secured("secret.example.com"), message, "provisioned-secret", "body")


@pytest.mark.parametrize("kind", ["github-token", "aws-key-id", "private-key", "jwt", "bottle-token"])
def test_a_token_does_not_leave(stopped: Stopped, api: Client, kind: str) -> None:
    stopped(api, post(json.dumps({"text": EXAMPLES[kind]}).encode()), kind, "body")


@pytest.mark.parametrize("coding", PACKED)
@pytest.mark.parametrize("chunk", [0, 1, 100])
def test_a_secret_does_not_leave_compressed(stopped: Stopped, api: Client, coding: str, chunk: int) -> None:
    body = PACKED[coding](b"before " * 50 + SECRET.encode() + b" after")
    header = f"Content-Encoding: {coding}"
    message = chunked_post(body, chunk, header) if chunk else post(body, header)
    stopped(api, message, "provisioned-secret", "body")


@pytest.mark.parametrize("name", PACKED_UNANNOUNCED)
@pytest.mark.parametrize("chunk", [0, 1, 100])
def test_a_secret_does_not_leave_in_a_container(stopped: Stopped, api: Client, name: str, chunk: int) -> None:
    body = b"some words before " + PACKED_UNANNOUNCED[name](b"before " * 50 + SECRET.encode() + b" after")
    stopped(api, chunked_post(body, chunk) if chunk else post(body), "provisioned-secret", "body")


def test_a_secret_deep_in_an_archive_cuts_it_off(lab: Harness, stopped: Stopped, api: Client) -> None:
    body = gzip.compress(random.Random(3).randbytes(3_000_000) + SECRET.encode() + b"the end")
    api.send(chunked_post(body, 70_000))
    assert api.answer().reason == "dlp"
    api.close()
    assert stopped.record()["finding"]["where"] == "body"
    [seen] = lab.requests
    assert not seen.whole
    assert SECRET.encode() not in zlib.decompressobj(31).decompress(seen.body)
    eventually(lambda: _held_bytes(lab) == 0, "what the search kept")


def test_a_secret_does_not_leave_in_a_git_pack(stopped: Stopped, api: Client) -> None:
    text = SECRET.encode()
    pack = Pack().tree(("a.txt", named("blob", text))).blob(text)
    stopped(api, post(pack.bytes), "provisioned-secret", "body", file="a.txt")


def test_a_push_that_is_stopped_is_recorded_though_it_is_never_sent_whole(
    lab: Harness, stopped: Stopped, api: Client
) -> None:
    body = b"0000" + Pack().blob(SECRET.encode()).blob(random.Random(3).randbytes(200_000)).bytes
    message = post(body, "Content-Type: application/x-git-receive-pack-request")
    api.send(message[:-4])
    api.close()
    record = stopped.record()
    assert (record["verdict"], record["finding"]["kind"]) == ("refused", "provisioned-secret")
    assert lab.requests == []


def test_a_secret_does_not_leave_in_two_headers(stopped: Stopped, api: Client) -> None:
    message = get("/in", "api.example.com", f"X-A: {SECRET[:8]}", f"X-B: {SECRET[8:]}")
    stopped(api, message, "provisioned-secret", "header")


def test_a_secret_does_not_leave_in_chunks(stopped: Stopped, api: Client) -> None:
    message = chunked_post(b"before " + SECRET.encode() + b" after", 1)
    stopped(api, message, "provisioned-secret", "body")


def test_a_secret_does_not_leave_in_single_bytes(stopped: Stopped, api: Client) -> None:
    *message, last = post(b"before " + SECRET.encode() + b" after")
    for byte in message:
        api.send(bytes([byte]))
    stopped(api, bytes([last]), "provisioned-secret", "body")


@AS
def test_a_secret_does_not_leave_in_a_trailer(stopped: Stopped, api: Client, disguise: str) -> None:
    message = chunked_post(b"harmless", 8, trailer=f"X-Sum: {DISGUISES[disguise](SECRET)}\r\n")
    stopped(api, message, "provisioned-secret", "trailer")


def test_a_secret_does_not_leave_after_100_continue(lab: Harness, api: Client) -> None:
    api.send(request("POST", "/in", "api.example.com", "Content-Length: 17", "Expect: 100-continue"))
    assert api.answer().status == 100
    api.send(SECRET.encode())
    assert api.answer().reason == "dlp"
    assert [(seen.body, seen.whole) for seen in lab.requests] == [(b"", False)]


@pytest.mark.parametrize("in_chunks", [True, False])
def test_a_secret_deep_in_an_upload_cuts_it_off(
    lab: Harness, stopped: Stopped, api: Client, in_chunks: bool
) -> None:
    body = b"x" * 5_000_000 + SECRET.encode() + b"x" * 1000
    api.send(chunked_post(body, 70_000) if in_chunks else post(body))
    assert api.answer().reason == "dlp"
    api.close()
    assert stopped.record()["finding"]["where"] == "body"
    [seen] = lab.requests
    assert not seen.whole
    assert set(seen.body) == {ord("x")}


def test_a_secret_does_not_leave_in_the_name_of_a_tunnel(lab: Harness, api: Client) -> None:
    answer = lab.client().ask(connect(f"{SECRET.encode().hex()}.bare.example.com"))
    assert (answer.status, answer.reason) == (403, "dlp")
    assert lab.origins.connections == []


def test_a_secret_does_not_leave_behind_a_websocket_mask(lab: Harness, stopped: Stopped, api: Client) -> None:
    api.send(
        get(
            "/websocket", "api.example.com", "Connection: Upgrade", "Upgrade: websocket",
            "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
            "Sec-WebSocket-Extensions: permessage-deflate",
        )
    )  # fmt: skip
    assert api.answer().status == 101
    hello = frame(b"hello")
    api.send(hello)
    assert api.take(len(hello)) == hello
    api.send(frame(b"it is " + SECRET.encode()))
    assert api.everything() == b""
    assert lab.requests[0].values("sec-websocket-extensions") == []
    assert (stopped.record()["status"], stopped.record()["finding"]["where"]) == (101, "body")


def frame(payload: bytes, mask: bytes = b"\x01\xfe\x33\x80") -> bytes:
    masked = bytes(byte ^ mask[place % 4] for place, byte in enumerate(payload))
    return bytes([0x81, 0x80 | len(payload)]) + mask + masked


@pytest.mark.parametrize(
    ("coding", "body"),
    [
        ("compress", b"x"),
        ("gzip", b"not gzip at all"),
        ("gzip", gzip.compress(b"text")[:-3]),
        ("gzip, gzip, gzip", b"x"),
        ("gzip", gzip.compress(bytes(50_000_000))),
    ],
    ids=["unknown coding", "not gzip", "cut short", "too many layers", "a bomb"],
)
def test_a_body_that_cannot_be_read_does_not_leave(
    lab: Harness, api: Client, coding: str, body: bytes
) -> None:
    answer = api.ask(post(body, f"Content-Encoding: {coding}"))
    assert (answer.status, answer.reason) == (403, "dlp-unreadable")
    assert lab.requests == []


def test_open_uploads_get_only_so_much_memory_for_decoding(lab: Harness, api: Client) -> None:
    body = PACKED["br"](b"some text " * 50)
    message, each = post(body, "Content-Encoding: br"), memory_of_scan(["br"], len(body))
    held = [lab.secured("api.example.com") for _ in range(128 * 1024 * 1024 // each)]
    for client in held:
        client.send(message[:-5])
    eventually(lambda: _held_bytes(lab) == len(held) * each, "the uploads")
    answer = api.ask(message)
    assert (answer.status, answer.reason) == (503, "too-much-held")
    assert lab.secured("api.example.com").ask(post(b"as it is")).status == 200
    for client in held:
        client.send(message[-5:])
        assert client.answer().status == 200
    assert lab.secured("api.example.com").ask(message).status == 200
    eventually(lambda: _held_bytes(lab) == 0, "their end")


def _held_bytes(lab: Harness) -> int:
    return int(lab.control("GET", "/status")["bottles"]["agent-a"]["held_bytes"])


@pytest.mark.parametrize("accept", ["application/json", "text/plain"])
@pytest.mark.parametrize(("body", "header"), [(TOKEN.encode(), "A: b"), (b"x", "Content-Encoding: odd")])
def test_a_refusal_points_to_no_allowlist(api: Client, accept: str, body: bytes, header: str) -> None:
    told = api.ask(post(body, header, f"Accept: {accept}")).body.decode()
    assert "secret" in told
    assert not any(word in told for word in ("egress-block", "pipelock", "block", "tool", "ask", "allowlist"))


def test_a_refusal_costs_no_use_of_a_lease(lab: Harness) -> None:
    lab.publish("agent-a", [*ROUTES[1:], pinned("api.example.com", methods=["GET"], lease={"max_uses": 1})])
    client = lab.secured("api.example.com")
    assert client.ask(get(f"/in?q={SECRET}", "api.example.com")).reason == "dlp"
    assert client.ask(get("/in", "api.example.com")).status == 200
    assert client.ask(get("/in", "api.example.com")).reason == "used-up"


def test_the_switch_turns_it_off(lab: Harness) -> None:
    lab.publish("agent-a", [pinned("api.example.com", methods=["POST"], dlp={"out": False})])
    answer = lab.secured("api.example.com").ask(post(TOKEN.encode(), f"X-Token: {TOKEN}"))
    assert answer.json["body"] == TOKEN


def test_the_switch_makes_a_route_that_would_be_tunnelled_readable(lab: Harness, stopped: Stopped) -> None:
    lab.publish("agent-a", [pinned("bare.example.com", dlp={"out": True})])
    stopped(
        lab.secured("bare.example.com"),
        post(TOKEN.encode(), host="bare.example.com"),
        "github-token",
        "body",
    )


def test_a_replaced_credential_is_not_a_leak(lab: Harness) -> None:
    lab.publish("agent-a", ROUTES)
    client = lab.secured("secret.example.com")
    answer = client.ask(
        get("/in", "secret.example.com", f"Authorization: token {TOKEN}", f"X-Api-Key: {TOKEN}")
    )
    assert answer.status == 200
    assert lab.requests[0].values("authorization") == [f"Bearer {SECRET}"]


@pytest.mark.parametrize("coding", ["", "gzip", "zstd"])
@pytest.mark.parametrize("in_chunks", [True, False])
def test_a_large_harmless_upload_arrives_unchanged(
    lab: Harness, api: Client, coding: str, in_chunks: bool
) -> None:
    body = random.Random(3).randbytes(2_000_000) + b"lorem ipsum\n" * 700_000
    body = PACKED[coding](body) if coding else body
    coded = [f"Content-Encoding: {coding}"] if coding else []
    api.send(chunked_post(body, 99_999, *coded) if in_chunks else post(body, *coded))
    eventually(lambda: lab.requests and lab.requests[0].whole, "the upload")
    assert lab.requests[0].body == body
