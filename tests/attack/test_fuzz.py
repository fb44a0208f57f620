"""Mutated messages: what the proxy accepts, two other parsers read in the same way; it refuses the rest."""

from __future__ import annotations

import contextlib
from typing import Any

import h11
import httptools
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from egress.proxy.body import ChunkedBody, chunk, last_chunk
from egress.proxy.clienthello import BadHello, HelloReader
from egress.proxy.errors import BadRequest
from egress.proxy.head import CHUNKED, RequestHead, parse_request, read_usual_line
from egress.proxy.targets import forward_target, inner_target
from egress.proxy.writing import request_bytes
from tests.attack.test_authority import hello, records
from tests.proxy.lab import Lab, get

pytestmark = pytest.mark.fuzz
HOST = "api.example.com"
LINES = [
    b"GET /allowed HTTP/1.1",
    b"POST /allowed/x?y=z HTTP/1.1",
    b"GET http://api.example.com/allowed HTTP/1.1",
    b"PUT /allowed/%2F HTTP/1.1",
    b"Host: api.example.com",
    b"Host: other.example.com",
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


heads = mutated(
    st.builds(
        lambda first, rest: b"\r\n".join([first, *rest]) + b"\r\n\r\n",
        st.sampled_from(LINES[:4]),
        st.lists(st.sampled_from(LINES[4:]), max_size=6),
    )
)
usual_heads = mutated(
    st.builds(
        lambda first, rest: b"\r\n".join([first, b"Host: api.example.com", *rest]) + b"\r\n\r\n",
        st.sampled_from(LINES[:4]),
        st.lists(st.sampled_from(LINES[6:]), max_size=3),
    )
)


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
    return head, target.host, request_bytes(head, target.origin_form, target.host.encode(), head.end_to_end())


@settings(max_examples=1500, deadline=None)
@given(heads | usual_heads)
@example(b"GET /allowed HTTP/1.1\r\nHost: api.example.com\r\nX-A: b\r\n\r\n")
def test_what_is_sent_on_means_the_same_to_other_parsers(raw: bytes) -> None:
    result = accepted(raw)
    if result is None:
        return
    head, host, sent = result
    parser = h11.Connection(h11.SERVER)
    parser.receive_data(sent)
    event = parser.next_event()
    assert isinstance(event, h11.Request), (raw, sent)
    headers = [(bytes(name), bytes(value)) for name, value in event.headers]
    assert event.method.decode() == head.method
    assert event.target in head.target
    assert [value for name, value in headers if name == b"host"] == [host.encode()]
    framing = [(name, value) for name, value in headers if name in (b"content-length", b"transfer-encoding")]
    expected = {CHUNKED: [(b"transfer-encoding", b"chunked")], 0: []}
    declared = [(b"content-length", str(head.length).encode())]
    assert framing in (expected.get(head.length, declared), declared)
    assert _llhttp_target(sent) == event.target


class _Reader:
    url = b""

    def on_url(self, url: bytes) -> None:
        self.url += url


def _llhttp_target(sent: bytes) -> bytes:
    reader = _Reader()
    with contextlib.suppress(httptools.HttpParserUpgrade):
        httptools.HttpRequestParser(reader).feed_data(sent)
    return reader.url


@settings(max_examples=800, deadline=None)
@given(mutated(st.sampled_from(LINES[:4])))
@example(b"GET /allowed?a=b HTTP/1.1")
@example(b"HEAD /%2e HTTP/1.1")
@example(b"GET /a b HTTP/1.1")
@example(b"GET /a#b HTTP/1.1")
@example(b"GET /a?b#c HTTP/1.1")
@example(b"GET /a\x7f HTTP/1.1")
def test_a_usual_line_means_what_it_means_in_a_whole_head(line: bytes) -> None:
    raw = line + b"\r\nHost: api.example.com\r\n\r\n"
    usual = read_usual_line(raw)
    if usual is None:
        return
    head = parse_request(raw, max_fields=50)
    target = inner_target(head, "https", HOST, 443)
    assert usual == (head.method, target.path, target.origin_form, len(line) + 2)


@settings(max_examples=800, deadline=None)
@given(heads)
def test_a_head_is_accepted_only_if_h11_accepts_it_too(raw: bytes) -> None:
    try:
        head = parse_request(raw, max_fields=50)
    except BadRequest:
        return
    if b"host" not in head.single:
        return  # told to the client later, with the target in view
    parser = h11.Connection(h11.SERVER)
    parser.receive_data(raw)
    event = parser.next_event()
    assert isinstance(event, h11.Request), raw
    assert [(name, value) for name, _, value in head.fields] == [
        (bytes(n), bytes(v)) for n, v in event.headers
    ]


bodies = mutated(
    st.builds(
        lambda parts, trailers: (
            b"".join(chunk(part) for part in parts) + last_chunk(trailers) + b"GET / HTTP/1.1"
        ),
        st.lists(st.binary(min_size=1, max_size=40), max_size=4),
        st.lists(st.sampled_from([(b"X-Sum", b"1"), (b"X-B", b"")]), max_size=2),
    )
)


@settings(max_examples=800, deadline=None)
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


@settings(max_examples=800, deadline=None)
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
likely_heads = mutated(
    st.builds(
        lambda first, rest: b"\r\n".join([first, b"Host: api.example.com", *rest]) + b"\r\n\r\n",
        st.sampled_from(LINES[:3]),
        st.lists(st.sampled_from([LINES[6], LINES[8], *LINES[10:16]]), max_size=2, unique=True),
    )
)


def said_to_a_proxy(raw: bytes) -> bytes:
    """In absolute form, which is all that a plain socket takes."""
    method, space, rest = raw.partition(b" ")
    return method + space + (b"http://" + HOST.encode() if rest.startswith(b"/") else b"") + rest


@pytest.mark.process
@settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(likely_heads | usual_heads)
def test_the_process_survives_and_keeps_the_rules(lab: Lab, raw: bytes) -> None:
    """The fixture asks the origins, which read with another parser, what came of it all."""
    whole = raw if raw.endswith(b"\r\n\r\n") else raw + b"\r\n\r\n"
    for client, message in (
        (lab.secured(HOST), whole + HIDDEN),
        (lab.client(), said_to_a_proxy(whole) + said_to_a_proxy(HIDDEN)),
    ):
        client.send(message)
        # Bounded, because some of them promise more than there is to come.
        client.everything_until(*LAST_WORDS, seconds=0.2)
        client.close()
