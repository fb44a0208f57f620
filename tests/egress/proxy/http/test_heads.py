"""Heads are read within bounds: what is too much is refused before any of it is looked at closely."""

from __future__ import annotations

import pytest

from egress.proxy.errors import BadAnswer, BadRequest
from egress.proxy.http.heads import parse_request, parse_response

MOST = 16 * 1024


def head(target: str, *fields: str) -> bytes:
    return "\r\n".join([f"GET {target} HTTP/1.1", "Host: a.com", *fields, "", ""]).encode()


def refusal(raw: bytes) -> tuple[int, str]:
    with pytest.raises(BadRequest) as refused:
        parse_request(raw, max_fields=128)
    return refused.value.status, refused.value.reason


@pytest.mark.parametrize("start", ["/", "/?", "http://a.com/", "/%C3%A9?a=b&"])
def test_a_target_may_be_so_long_and_no_longer(start: str) -> None:
    longest = start.ljust(MOST, "x")
    assert len(parse_request(head(longest), max_fields=128).target) == MOST
    assert refusal(head(longest + "x")) == (414, "too-large")


def test_fields_are_counted_before_any_is_read() -> None:
    """Two Host headers would be another refusal, if they had been seen."""
    assert refusal(head("/", *["Host: a.com"] * 16_000)) == (431, "too-many-headers")
    raw = b"HTTP/1.1 200 OK\r\n" + b"Content-Length: 1\r\n" * 16_000 + b"\r\n"
    with pytest.raises(BadAnswer, match="more than 128 headers"):
        parse_response(raw, max_fields=128, to_head=False)


def test_as_many_fields_as_allowed_pass() -> None:
    assert len(parse_request(head("/", *["X: y"] * 127), max_fields=128).fields) == 128
    assert refusal(head("/", *["X: y"] * 128)) == (431, "too-many-headers")


def test_a_head_that_was_read_before_is_judged_by_the_limit_of_now() -> None:
    raw = head("/", "X: y", "X: z")
    assert parse_request(raw, max_fields=128) == parse_request(raw, max_fields=128)
    with pytest.raises(BadRequest, match="more than 1 headers"):
        parse_request(raw, max_fields=1)


@pytest.mark.parametrize(
    "fields",
    [
        ["Connection: " + "a," * 64],
        ["Connection: " + "a," * 40, "Connection: " + "b," * 40],
        ["Connection: " + "a," * 40, "Proxy-Connection: " + "b," * 40],
        ["Connection: a"] * 65,
        ["Connection: " + "," * 64 + "authorization"],  # not split, so not seen
    ],
)
def test_connection_names_so_many_headers_and_no_more(fields: list[str]) -> None:
    with pytest.raises(BadRequest, match="more than 64 headers") as refused:
        parse_request(head("/", *fields), max_fields=128)
    assert (refused.value.status, refused.value.reason) == (400, "bad-head")


def test_connection_may_name_many() -> None:
    names = [f"x-{number}" for number in range(64)]
    found = parse_request(head("/", "Connection: " + ", ".join(names), "X-7: a", "X-64: b"), max_fields=128)
    assert found.connection == {name.encode() for name in names}
    assert [name for _, name, _ in found.travelling] == [b"X-64"]
    assert parse_request(head("/"), max_fields=128).connection == frozenset()
