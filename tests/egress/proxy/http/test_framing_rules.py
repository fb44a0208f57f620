"""Where a message ends: the rules by themselves, without a proxy around them."""

from __future__ import annotations

import pytest

from egress.proxy.errors import BadRequest
from egress.proxy.http.body import ChunkedBody
from egress.proxy.http.heads import CHUNKED, parse_request

HEAD = b"POST / HTTP/1.1\r\nHost: api.example.com\r\n%b\r\n"


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        (b"Transfer-Encoding: gzip, chunked\r\n", "its Transfer-Encoding is not 'chunked'"),
        (b"Transfer-Encoding: identity,chunked\r\n", "its Transfer-Encoding is not 'chunked'"),
        (b"Transfer-Encoding: , chunked\r\n", "its Transfer-Encoding is not 'chunked'"),
        (b"Content-Length: 5\r\nContent_Length: 50\r\n", "content-length is spelt without '-'"),
        (b"Content_Length: 5\r\n", "content-length is spelt without '-'"),
        (b"Transfer_Encoding: chunked\r\n", "transfer-encoding is spelt without '-'"),
        (b"Content-Length: 5\r\nContent-Length: 5\r\n", "it has two content-length headers"),
        (
            b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
            "it has both Content-Length and Transfer-Encoding",
        ),
        (b"Content-Length: 05\r\n", "its Content-Length is not a plain number"),
    ],
)
def test_a_length_that_can_be_read_in_two_ways_is_refused(fields: bytes, rule: str) -> None:
    """By a rule of our own, whose sentence shows it: llhttp is asked after them."""
    with pytest.raises(BadRequest, match=rule):
        parse_request(HEAD % fields, max_fields=100)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Host", "other.example.com"),
        ("Content-Length", "5"),
        ("Transfer-Encoding", "chunked"),
        ("Expect", "100-continue"),
        ("Upgrade", "websocket"),
        ("Proxy-Authorization", "Basic YTpi"),
    ],
)
def test_a_header_that_the_proxy_acts_on_stands_once(name: str, value: str) -> None:
    twice = f"{name}: {value}\r\n{name.upper()}: {value}\r\n".encode("ascii")
    with pytest.raises(BadRequest, match=f"it has two {name.lower()} headers"):
        parse_request(HEAD % twice, max_fields=100)


def test_one_length_is_read() -> None:
    assert parse_request(HEAD % b"Content-Length: 5\r\n", max_fields=100).length == 5
    assert parse_request(HEAD % b"Transfer-Encoding: Chunked\r\n", max_fields=100).length == CHUNKED


@pytest.mark.parametrize(
    "raw",
    [
        b"5\r\nhelloX\r\n0\r\n\r\n",
        b"5\r\nhello0\r\n\r\n",
        b"5\r\nhello\n0\r\n\r\n",
        b"5;a=b\r\nhello\r\n0\r\n\r\n",
        b"0x5\r\nhello\r\n0\r\n\r\n",
    ],
)
@pytest.mark.parametrize("step", [1, 1000])
def test_a_chunk_is_exactly_as_long_as_its_size(raw: bytes, step: int) -> None:
    body = ChunkedBody()
    with pytest.raises(ValueError, match="chunk"):
        for start in range(0, len(raw), step):
            body.feed(raw[start : start + step])
