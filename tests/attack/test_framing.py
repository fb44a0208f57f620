"""Attempts to hide one request inside another. No request to /forbidden, and no second one, may come out."""

from __future__ import annotations

import pytest

from tests.attack.conftest import Allowed
from tests.support.proxy_harness import Harness, get, request

pytestmark = pytest.mark.process

HIDDEN = b"GET /forbidden HTTP/1.1\r\nHost: api.example.com\r\n\r\n"
START = b"POST /allowed HTTP/1.1\r\nHost: api.example.com\r\n"
CHUNKED = START + b"Transfer-Encoding: chunked\r\n\r\n"

HEADS = {
    "length and chunked": b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
    "chunked and length": b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
    "zero length and chunked": b"Content-Length: 0\r\nTransfer-Encoding: chunked\r\n",
    "two lengths": b"Content-Length: 5\r\nContent-Length: 6\r\n",
    "the same length twice": b"Content-Length: 5\r\nContent-Length: 5\r\n",
    "length with plus": b"Content-Length: +5\r\n",
    "negative length": b"Content-Length: -1\r\n",
    "hexadecimal length": b"Content-Length: 0x5\r\n",
    "list of lengths": b"Content-Length: 5, 5\r\n",
    "length with exponent": b"Content-Length: 1e1\r\n",
    "length with a space": b"Content-Length: 5 0\r\n",
    "length with leading zero": b"Content-Length: 05\r\n",
    "empty length": b"Content-Length: \r\n",
    "huge length": b"Content-Length: 99999999999999999999\r\n",
    "length in other digits": b"Content-Length: \xd9\xa5\r\n",
    "length with underscore": b"Content-Length: 1_0\r\n",
    "length spelt with '_'": b"Content_Length: 5\r\n",
    "length spelt in two ways": b"Content-Length: 5\r\nContent_Length: 50\r\n",
    "length spelt with a dot": b"Content.Length: 5\r\n",
    "coding spelt with '_'": b"Transfer_Encoding: chunked\r\n",
    "coding of the body spelt with '_'": b"Content_Encoding: gzip\r\nContent-Length: 5\r\n",
    "two types": b"Content-Type: text/plain\r\nContent-Type: text/html\r\nContent-Length: 5\r\n",
    "identity coding": b"Transfer-Encoding: identity\r\n",
    "chunked then identity": b"Transfer-Encoding: chunked, identity\r\n",
    "gzip then chunked": b"Transfer-Encoding: gzip, chunked\r\n",
    "two codings": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
    "chunked and identity apart": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
    "misspelt coding": b"Transfer-Encoding: xchunked\r\n",
    "coding with parameter": b"Transfer-Encoding: chunked;q=1\r\n",
    "quoted coding": b'Transfer-Encoding: "chunked"\r\n',
    "coding with vertical tab": b"Transfer-Encoding: \x0bchunked\r\n",
    "empty coding": b"Transfer-Encoding:\r\n",
    "space before colon": b"Transfer-Encoding : chunked\r\n",
    "tab before colon": b"Transfer-Encoding\t: chunked\r\n",
    "NUL before colon": b"Transfer-Encoding\0: chunked\r\n",
    "folded header": b"X-A: b\r\n Transfer-Encoding: chunked\r\n",
    "folded coding": b"Transfer-Encoding:\r\n chunked\r\n",
    "tab folded": b"X-A: b\r\n\tc\r\n",
    "first header indented": b" X-A: b\r\n",
    "bare LF between headers": b"X-A: b\nTransfer-Encoding: chunked\r\n",
    "bare CR in a value": b"X-A: b\rTransfer-Encoding: chunked\r\n",
    "CR CR LF": b"X-A: b\r\r\n",
    "NUL in a value": b"X-A: b\0c\r\n",
    "control character in a value": b"X-A: b\x08c\r\n",
    "no colon": b"X-A\r\n",
    "empty name": b": value\r\n",
    "space in a name": b"X A: b\r\n",
    "bracket in a name": b"X(A): b\r\n",
    "high byte in a name": b"X-\xe9: b\r\n",
    "Connection names Content-Length": b"Connection: content-length\r\nContent-Length: 5\r\n",
    "Connection names Content-Type": b"Connection: content-type\r\nContent-Length: 5\r\n",
    "Connection names Content-Encoding": b"Connection: content-encoding\r\nContent-Length: 5\r\n",
    "Connection names very many headers": b"Connection: " + b"a," * 100 + b"close\r\n",
    "unknown expectation": b"Expect: 200-ok\r\nContent-Length: 5\r\n",
    "two expectations": b"Expect: 100-continue\r\nExpect: 100-continue\r\nContent-Length: 5\r\n",
}

CHUNKS = {
    "extension": b"5;x=y\r\nhello\r\n0\r\n\r\n",
    "extension with LF": b"5;\nhello\r\n0\r\n\r\n",
    "space after size": b"5 \r\nhello\r\n0\r\n\r\n",
    "space before size": b" 5\r\nhello\r\n0\r\n\r\n",
    "0x prefix": b"0x5\r\nhello\r\n0\r\n\r\n",
    "plus": b"+5\r\nhello\r\n0\r\n\r\n",
    "minus": b"-5\r\nhello\r\n0\r\n\r\n",
    "underscore": b"1_0\r\nhellohellohelloh\r\n0\r\n\r\n",
    "empty size": b"\r\nhello\r\n0\r\n\r\n",
    "not hexadecimal": b"zz\r\nhello\r\n0\r\n\r\n",
    "overflow of 64 bits": b"10000000000000005\r\nhello\r\n0\r\n\r\n",
    "many zeros": b"0" * 5000 + b"5\r\nhello\r\n0\r\n\r\n",
    "bare LF after size": b"5\nhello\r\n0\r\n\r\n",
    "bare CR after size": b"5\rhello\r\n0\r\n\r\n",
    "bare LF after data": b"5\r\nhello\n0\r\n\r\n",
    "data longer than size": b"3\r\nhello\r\n0\r\n\r\n",
    "no CRLF after data": b"5\r\nhello0\r\n\r\n",
    "length as trailer": b"0\r\nContent-Length: 50\r\n\r\n",
    "length spelt with '_' as trailer": b"0\r\nContent_Length: 50\r\n\r\n",
    "method override as trailer": b"0\r\nX-HTTP-Method-Override: DELETE\r\n\r\n",
    "method override with '_' as trailer": b"0\r\nX_HTTP_Method: DELETE\r\n\r\n",
    "path override as trailer": b"0\r\nX-Original-URL: /forbidden\r\n\r\n",
    "host override as trailer": b"0\r\nX-Forwarded-Host: other.example.com\r\n\r\n",
    "second path as trailer": b"0\r\nX-Amz-Copy-Source: /forbidden\r\n\r\n",
    "range as trailer": b"0\r\nRange: bytes=0-1\r\n\r\n",
    "host as trailer": b"0\r\nHost: other.example.com\r\n\r\n",
    "authorization as trailer": b"0\r\nAuthorization: Bearer agents-own-credential\r\n\r\n",
    "folded trailer": b"0\r\nX-A: b\r\n c\r\n\r\n",
    "malformed trailer": b"0\r\nnonsense\r\n\r\n",
    "too many trailers": b"0\r\n" + b"X: y\r\n" * 100 + b"\r\n",
}

LINES = {
    "HTTP/0.9": b"GET /allowed\r\n\r\n",
    "HTTP/1.0": b"GET /allowed HTTP/1.0\r\nHost: api.example.com\r\n\r\n",
    "HTTP/2": b"GET /allowed HTTP/2.0\r\nHost: api.example.com\r\n\r\n",
    "HTTP/1.2": b"GET /allowed HTTP/1.2\r\nHost: api.example.com\r\n\r\n",
    "lower-case protocol": b"GET /allowed http/1.1\r\nHost: api.example.com\r\n\r\n",
    "other protocol": b"GET /allowed ICY/1.1\r\nHost: api.example.com\r\n\r\n",
    "trailing space": b"GET /allowed HTTP/1.1 \r\nHost: api.example.com\r\n\r\n",
    "two spaces": b"GET  /allowed HTTP/1.1\r\nHost: api.example.com\r\n\r\n",
    "tab": b"GET\t/allowed HTTP/1.1\r\nHost: api.example.com\r\n\r\n",
    "space in target": b"GET /allowed HTTP/1.1 HTTP/1.1\r\nHost: api.example.com\r\n\r\n",
    "leading empty line": b"\r\nGET /allowed HTTP/1.1\r\nHost: api.example.com\r\n\r\n",
    "leading space": b" GET /allowed HTTP/1.1\r\nHost: api.example.com\r\n\r\n",
    "LF only": b"GET /allowed HTTP/1.1\nHost: api.example.com\n\n\r\n\r\n",
    "LF after the request line": b"GET /allowed HTTP/1.1\nHost: api.example.com\r\n\r\n",
    "LF hides a request": b"GET /allowed HTTP/1.1\r\nHost: api.example.com\n\n" + HIDDEN,
    "NUL in the line": b"GET /allowed\0 HTTP/1.1\r\nHost: api.example.com\r\n\r\n",
    "an answer": b"HTTP/1.1 200 OK\r\nHost: api.example.com\r\n\r\n",
    "too long a line": b"GET /allowed/" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: api.example.com\r\n\r\n",
    "too long a target": b"GET /allowed/" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: api.example.com\r\n\r\n",
    "too long a query": b"GET /allowed?" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: api.example.com\r\n\r\n",
    "too many headers": b"GET /allowed HTTP/1.1\r\nHost: api.example.com\r\n" + b"X: y\r\n" * 200 + b"\r\n",
    "too long a header": b"GET /allowed HTTP/1.1\r\nHost: api.example.com\r\nX: "
    + b"y" * 70_000
    + b"\r\n\r\n",
}


def cases(table: dict[str, bytes]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("text", list(table.values()), ids=list(table))


@cases(HEADS)
def test_an_ambiguous_head_is_refused_and_nothing_after_it_is_read(lab: Harness, text: bytes) -> None:
    client = lab.secured("api.example.com")
    answer = client.ask(START + text + b"\r\n" + b"0\r\n\r\n" + HIDDEN)
    assert (answer.status, answer.headers.get("connection")) == (400, "close")
    assert client.everything() == b""
    assert lab.requests == []


@cases(HEADS)
def test_an_ambiguous_plain_head_is_refused(lab: Harness, text: bytes) -> None:
    start = b"POST http://api.example.com/allowed HTTP/1.1\r\nHost: api.example.com\r\n"
    client = lab.client()
    assert client.ask(start + text + b"\r\n" + b"0\r\n\r\n" + HIDDEN).status == 400
    assert client.everything() == b""
    assert lab.requests == []


@cases(CHUNKS)
def test_a_bad_chunk_never_completes_a_request(lab: Harness, text: bytes) -> None:
    client = lab.secured("api.example.com")
    assert client.ask(CHUNKED + text + HIDDEN).status == 400
    assert client.everything() == b""
    assert not any(seen.whole for seen in lab.requests)


@cases(LINES)
def test_a_bad_request_line_is_refused(lab: Harness, text: bytes) -> None:
    client = lab.secured("api.example.com")
    answer = client.ask(text + HIDDEN)
    assert answer.status in (400, 414, 431, 505)
    assert client.everything() == b""
    assert lab.requests == []


def test_what_follows_a_body_is_a_request_of_its_own(lab: Harness) -> None:
    client = lab.secured("api.example.com")
    client.send(request("POST", "/allowed", "api.example.com", "Content-Length: 5", body=b"hello") + HIDDEN)
    assert [client.answer().status, client.answer().status] == [200, 403]
    client.send(CHUNKED + b"5\r\nhello\r\n0\r\n\r\n" + HIDDEN)
    assert [client.answer().status, client.answer().status] == [200, 403]
    assert [bytes(seen.body) for seen in lab.requests] == [b"hello", b"hello"]


def test_a_request_in_a_body_stays_a_body(lab: Harness) -> None:
    client = lab.secured("api.example.com")
    length = f"Content-Length: {len(HIDDEN)}"
    assert client.ask(request("POST", "/allowed", "api.example.com", length, body=HIDDEN)).status == 200
    assert [bytes(seen.body) for seen in lab.requests] == [HIDDEN]


def test_a_body_that_stops_early_completes_nothing(lab: Harness) -> None:
    client = lab.secured("api.example.com")
    client.send(request("POST", "/allowed", "api.example.com", "Content-Length: 50", body=b"hello"))
    client.close()
    assert lab.secured("api.example.com").ask(get("/allowed/next", "api.example.com")).status == 200
    assert [seen.target for seen in lab.requests if seen.whole] == ["/allowed/next"]


def test_a_refused_body_is_not_taken_for_the_next_request(lab: Harness) -> None:
    client = lab.secured("api.example.com")
    length = f"Content-Length: {len(HIDDEN)}"
    body = HIDDEN.replace(b"/forbidden", b"/allowed/x")
    answer = client.ask(request("POST", "/forbidden", "api.example.com", length, body=body))
    assert (answer.status, answer.headers["connection"]) == (403, "close")
    assert client.everything() == b""
    assert lab.requests == []


# --- what origins send


@pytest.mark.parametrize(
    "path",
    [
        "/two-lengths",
        "/length-and-chunked",
        "/header-injection",
        "/folded",
        "/not-http",
        "/no-answer",
        "/fake-101",
    ],
)
def test_an_answer_that_breaks_the_rules_becomes_502(lab: Harness, allowed: Allowed, path: str) -> None:
    allowed["api.example.com"] = (path,)
    lab.publish("agent-a", _everything_on_api())
    answer = lab.secured("api.example.com").ask(get(path, "api.example.com"))
    assert answer.status == 502


@pytest.mark.parametrize("path", ["/bad-chunk", "/truncated"])
def test_an_answer_that_ends_wrongly_is_not_completed(lab: Harness, allowed: Allowed, path: str) -> None:
    allowed["api.example.com"] = (path,)
    lab.publish("agent-a", _everything_on_api())
    client = lab.secured("api.example.com")
    client.send(get(path, "api.example.com"))
    received = client.everything()
    assert not received.endswith(b"0\r\n\r\n")
    assert b"no\r\n" not in received


def _everything_on_api() -> list[dict[str, object]]:
    from tests.support.proxy_harness import pinned

    return [pinned("api.example.com", dlp={"out": False, "in": True})]
