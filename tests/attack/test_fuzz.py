"""Mutated messages: what the proxy accepts, two other parsers read in the same way; it refuses the rest."""

from __future__ import annotations

import base64
import contextlib
from typing import Any

import h11
import httptools
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from egress.proxy.errors import BadRequest
from egress.proxy.http.body import ChunkedBody, chunk, last_chunk
from egress.proxy.http.heads import CHUNKED, RequestHead, parse_request
from egress.proxy.http.proxy_auth import claimed_slug, slug_and_token
from egress.proxy.http.targets import connect_target, forward_target, inner_target
from egress.proxy.http.writer import request_bytes
from egress.proxy.tls.client_hello import BadHello, HelloReader
from tests.attack.conftest import ALLOWED
from tests.attack.test_authority import hello, records
from tests.attack.test_identity import credentials
from tests.support.proxy_harness import TOKENS, Harness, get
from tests.support.strategies import examples

HOST = "api.example.com"
OWN = credentials("agent-a", TOKENS["agent-a"]).encode()
STARTS = [
    b"GET /allowed HTTP/1.1",
    b"POST /allowed/x?y=z HTTP/1.1",
    b"GET http://api.example.com/allowed HTTP/1.1",
    b"PUT /allowed/%2F HTTP/1.1",
]
CONNECTS = [
    b"CONNECT api.example.com:443 HTTP/1.1",
    b"CONNECT bare.example.com:443 HTTP/1.1",
    b"CONNECT other.example.com:443 HTTP/1.1",
    b"CONNECT api.example.com:443 HTTP/1.0",
]
HOSTS = [b"Host: api.example.com", b"Host: other.example.com", b"Host: api.example.com:443"]
CREDENTIALS = [OWN, credentials("agent-b", TOKENS["agent-a"]).encode(), b"Proxy-Authorization: Bearer x"]
FIELDS = [
    b"Content-Length: 5",
    b"Content-Length: 0",
    b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: gzip",
    b"Connection: keep-alive, x-a",
    b"Connection: upgrade",
    b"Upgrade: websocket",
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    b"X-A: b",
    b"Authorization: Bearer x",
    b" folded",
    b"Expect: 100-continue",
    b"",
    *CREDENTIALS,
]
BYTES = st.sampled_from(
    [b"\r", b"\n", b"\r\n", b"\0", b" ", b"\t", b":", b",", b";", b"%", b"\\", b"\xff", b"/", b"0"]
)


@st.composite
def mutated(draw: st.DrawFn, starts: st.SearchStrategy[bytes]) -> bytes:
    """A likely message with a few bytes put in, taken out or doubled."""
    message = draw(starts)
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(message)))
        kind = draw(st.sampled_from(["insert", "delete", "repeat"]))
        if kind == "insert":
            message = message[:at] + draw(BYTES | st.binary(min_size=1, max_size=2)) + message[at:]
        elif kind == "delete":
            message = message[:at] + message[at + draw(st.integers(1, 3)) :]
        else:
            message = message[:at] + message[max(0, at - 10) :]
    return message


def head_of(first: bytes, rest: list[bytes]) -> bytes:
    return b"\r\n".join([first, *rest]) + b"\r\n\r\n"


def heads_with(
    starts: list[bytes], *always: bytes, fields: list[bytes], most: int, unique: bool = False
) -> st.SearchStrategy[bytes]:
    rest = st.lists(st.sampled_from(fields), max_size=most, unique=unique).map(lambda more: [*always, *more])
    return mutated(st.builds(head_of, st.sampled_from(starts), rest))


heads = heads_with(STARTS, fields=[*HOSTS, *FIELDS], most=6)
usual_heads = heads_with(STARTS, HOSTS[0], fields=FIELDS, most=3)
connects = heads_with(CONNECTS, fields=[*HOSTS, *CREDENTIALS, *FIELDS], most=4)
usual_connects = heads_with(CONNECTS[:1], HOSTS[2], OWN, fields=FIELDS, most=1)


def as_h11_reads(raw: bytes) -> tuple[h11.Request, list[tuple[bytes, bytes]]]:
    """The request, and its headers."""
    parser = h11.Connection(h11.SERVER)
    parser.receive_data(raw)
    event = parser.next_event()
    assert isinstance(event, h11.Request), raw
    return event, [(bytes(name), bytes(value)) for name, value in event.headers]


def values(headers: list[tuple[bytes, bytes]], wanted: bytes) -> list[bytes]:
    return [value for name, value in headers if name == wanted]


def accepted(raw: bytes) -> tuple[RequestHead, str, bytes] | None:
    """The head, the host it is for, and the bytes that would be sent on for it."""
    try:
        head = parse_request(raw, max_fields=50)
        target = (
            forward_target(head)
            if head.target.startswith(b"http")
            else inner_target(head, "https", HOST, 443)
        )
    except BadRequest:
        return None
    return head, target.host, request_bytes(head, target.origin_form, target.host.encode(), head.travelling)


@settings(max_examples=examples(200))
@given(heads | usual_heads)
@example(b"GET /allowed HTTP/1.1\r\nHost: api.example.com\r\nX-A: b\r\n\r\n")
def test_what_is_sent_on_means_the_same_to_other_parsers(raw: bytes) -> None:
    result = accepted(raw)
    if result is None:
        return
    head, host, sent = result
    event, headers = as_h11_reads(sent)
    assert event.method.decode() == head.method
    assert event.target == origin_form(bytes(as_h11_reads(raw)[0].target))
    assert values(headers, b"host") == [host.encode()]
    assert values(headers, b"proxy-authorization") == []
    framing = [(name, value) for name, value in headers if name in (b"content-length", b"transfer-encoding")]
    expected = {CHUNKED: [(b"transfer-encoding", b"chunked")], 0: []}
    declared = [(b"content-length", str(head.length).encode())]
    assert framing in (expected.get(head.length, declared), declared)
    assert _llhttp_target(sent) == event.target


def origin_form(target: bytes) -> bytes:
    """All that may be sent on of it: what follows the authority, to the byte."""
    if target.startswith(b"/"):
        return target
    _, slash, path = target.partition(b"://")[2].partition(b"/")
    return slash + path or b"/"


class _Reader:
    url = b""

    def on_url(self, url: bytes) -> None:
        self.url += url


def _llhttp_target(sent: bytes) -> bytes:
    reader = _Reader()
    with contextlib.suppress(httptools.HttpParserUpgrade):
        httptools.HttpRequestParser(reader).feed_data(sent)
    return reader.url


@settings(max_examples=examples(150))
@given(heads | connects)
def test_a_head_is_accepted_only_if_h11_accepts_it_too(raw: bytes) -> None:
    try:
        head = parse_request(raw, max_fields=50)
    except BadRequest:
        return
    if b"host" not in head.single:
        return  # told to the client later, with the target in view
    assert [(name, value) for name, _, value in head.fields] == as_h11_reads(raw)[1]


def authority(text: bytes) -> tuple[str, int]:
    """A name, and perhaps a colon and a port: there is nothing else in it to be understood. 0 for no port."""
    host, _, port = text.decode().partition(":")
    return host.lower().removesuffix("."), int(port or 0)


@settings(max_examples=examples(200))
@given(connects | usual_connects)
@example(head_of(CONNECTS[0], [HOSTS[0]]))
@example(head_of(CONNECTS[0], [HOSTS[1]]))
@example(head_of(CONNECTS[3], []))
@example(head_of(b"CONNECT x@api.example.com:443 HTTP/1.1", [b"Host: x@api.example.com:443"]))
def test_a_connect_leads_to_the_host_that_other_parsers_read(raw: bytes) -> None:
    try:
        target = connect_target(parse_request(raw, max_fields=50))
    except BadRequest:
        return
    aim = (target.host, target.port)
    event, headers = as_h11_reads(raw)
    assert authority(bytes(event.target)) == aim
    for declared in values(headers, b"host"):
        host, port = authority(declared)
        assert (host, port or aim[1]) == aim


@settings(max_examples=examples(150))
@given(connects | usual_connects | heads)
@example(head_of(CONNECTS[0], [HOSTS[0], OWN]))
@example(head_of(CONNECTS[0], [HOSTS[0], OWN, CREDENTIALS[1]]))
def test_who_asks_is_who_h11_reads(raw: bytes) -> None:
    """Also for the process that only looks whose it may be, and hands it on."""
    try:
        head = parse_request(raw, max_fields=50)
    except BadRequest:
        return
    slug, token = slug_and_token(head.single.get(b"proxy-authorization", b""))
    assert claimed_slug(raw) == slug
    if slug in TOKENS and b"host" in head.single:
        assert named_by(as_h11_reads(raw)[1]) == [f"{slug}:{token.decode('latin-1')}"]


def named_by(headers: list[tuple[bytes, bytes]]) -> list[str]:
    found = [value.split(maxsplit=1) for value in values(headers, b"proxy-authorization")]
    return [base64.b64decode(encoded).decode("latin-1") for _, encoded in found]


bodies = mutated(
    st.builds(
        lambda parts, trailers: (
            b"".join(chunk(part) for part in parts) + last_chunk(trailers) + b"GET / HTTP/1.1"
        ),
        st.lists(st.binary(min_size=1, max_size=40), max_size=4),
        st.lists(st.sampled_from([(b"X-Sum", b"1"), (b"X-B", b"")]), max_size=2),
    )
)


@settings(max_examples=examples(150))
@given(bodies, st.lists(st.integers(1, 30), max_size=20))
def test_a_chunked_body_means_the_same_however_it_is_cut(raw: bytes, cuts: list[int]) -> None:
    whole, pieces = _decode([raw]), _decode(_cut(raw, cuts))
    assert (whole is None) == (pieces is None)
    if whole is None or pieces is None:
        return
    payload, finished, rest = whole
    assert payload == pieces[0]
    assert finished == pieces[1]
    assert payload == _as_h11_reads_it(raw, len(raw) - len(rest) if finished else len(raw))


def _decode(pieces: list[bytes]) -> tuple[bytes, bool, bytes] | None:
    body, payload = ChunkedBody(), b""
    for piece in pieces:
        if body.finished:
            break
        try:
            payload += body.feed(piece)
        except ValueError:
            return None
    return payload, body.finished, body.rest


def _cut(raw: bytes, cuts: list[int]) -> list[bytes]:
    pieces = []
    for size in cuts:
        pieces.append(raw[:size])
        raw = raw[size:]
    return [piece for piece in [*pieces, raw] if piece]


def _as_h11_reads_it(raw: bytes, length: int) -> bytes:
    parser = h11.Connection(h11.SERVER)
    parser.receive_data(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + raw[:length])
    parser.next_event()
    payload = b""
    while isinstance(event := parser.next_event(), h11.Data):
        payload += event.data
    return payload


@settings(max_examples=examples(150))
@given(mutated(st.sampled_from([hello("bare.example.com"), hello(None)])), st.integers(0, 600))
def test_a_hello_is_read_or_refused_and_nothing_else(raw: bytes, length: int) -> None:
    whole = _name_of(raw)
    assert whole in (None, BadHello) or str(whole).isascii()
    assert _name_of(raw[:length], raw) == whole
    if len(raw) < 1000:
        assert _name_of(*(raw[:end] for end in range(len(raw) + 1))) == whole


def _name_of(*received: bytes) -> str | type[BadHello] | None:
    """What is read of a hello that arrives in pieces: all there is so far, each time."""
    reader = HelloReader()
    try:
        return next((name for so_far in received if (name := reader.server_name(so_far)) is not None), None)
    except BadHello:
        return BadHello


class Counted(bytes):
    """Counts how often it is looked into."""

    looks = 0

    def __getitem__(self, place: Any) -> Any:
        Counted.looks += 1
        return super().__getitem__(place)


def test_a_hello_that_drips_in_is_not_read_from_its_start_again() -> None:
    sent = records(hello("bare.example.com"), 1)
    Counted.looks = 0
    reader = HelloReader()
    names = [reader.server_name(Counted(sent[:end])) for end in range(1, len(sent) + 1)]
    assert names[-1] == "bare.example.com"
    assert Counted.looks < 2 * len(sent)


def test_a_hello_in_too_many_records_is_refused() -> None:
    dripping = b"\x16\x03\x01\x00\x00" + b"\x01\x00\x40\x00" + bytes(5000)
    with pytest.raises(BadHello, match="pieces"):
        HelloReader().server_name(records(dripping, 1))


# Where the proxy believes a request to end, this one begins, and is refused. It is longer than most bodies
# that a head may promise: of what is left then, no request can be made.
HIDDEN = get("/forbidden/hidden", HOST, "X-Pad: " + "x" * 6000)
LAST_WORDS = (b'"path": "/forbidden/hidden"', b"\r\nConnection: close\r\n")
likely_heads = heads_with(
    STARTS[:3], HOSTS[0], fields=[FIELDS[0], FIELDS[2], *FIELDS[4:10]], most=2, unique=True
)


def said_to_a_proxy(raw: bytes) -> bytes:
    """In absolute form, which is all that a plain socket takes."""
    method, space, rest = raw.partition(b" ")
    return method + space + (b"http://" + HOST.encode() if rest.startswith(b"/") else b"") + rest


def named(raw: bytes) -> bytes:
    """As the TCP port needs it."""
    return raw.replace(b"\r\n", b"\r\n" + OWN + b"\r\n", 1)


in_the_process = settings(
    max_examples=examples(30),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.mark.process
@in_the_process
@given(likely_heads | usual_heads)
@example(head_of(STARTS[1], [HOSTS[0], b"Content-Length: 500"]))
def test_the_process_survives_and_keeps_the_rules(lab: Harness, raw: bytes) -> None:
    """The fixture asks the origins, which read with another parser, what came of it all."""
    whole = raw if raw.endswith(b"\r\n\r\n") else raw + b"\r\n\r\n"
    for client, message in (
        (lab.secured(HOST), whole + HIDDEN),
        (lab.client(), said_to_a_proxy(whole) + said_to_a_proxy(HIDDEN)),
        (lab.tcp_client(), named(said_to_a_proxy(whole)) + named(said_to_a_proxy(HIDDEN))),
    ):
        client.send(message)
        # Bounded, because some of them promise more than there is to come.
        client.everything_until(*LAST_WORDS, seconds=0.2)
        client.close()
    # In a body it may be: what follows is one, to a head that says so.
    assert not any(seen.values("proxy-authorization") for seen in lab.requests)


@pytest.mark.process
@in_the_process
@given(connects | usual_connects)
@example(head_of(CONNECTS[0], [HOSTS[0], OWN]))
@example(head_of(CONNECTS[1], [b"Host: bare.example.com", OWN]))
@example(head_of(CONNECTS[2], [HOSTS[1], OWN]))
@example(head_of(CONNECTS[0], [HOSTS[0]]))
@example(head_of(CONNECTS[0], [HOSTS[0], CREDENTIALS[1]]))
def test_the_tcp_port_opens_what_h11_reads_to_whom_h11_reads(lab: Harness, raw: bytes) -> None:
    """And then only what the table allows, whatever was said to get there."""
    client = lab.tcp_client()
    client.send(raw)
    answer = client.everything_until(b"\r\n\r\n", seconds=0.2)
    if not answer.startswith(b"HTTP/1.1 200"):
        client.close()
        return
    event, headers = as_h11_reads(raw)
    host, port = authority(bytes(event.target))
    assert (bytes(event.method), port, named_by(headers)) == (b"CONNECT", 443, ["agent-a:token-of-a"])
    if raw.endswith(b"\r\n\r\n") and raw.count(b"\r\n\r\n") == 1:  # nothing of it is in the way of TLS
        inside = lab.wrap(client, host)  # where the proxy proves that it means the same host
        assert inside.ask(get("/allowed", host)).status == (200 if host in ALLOWED else 403)
    client.close()
