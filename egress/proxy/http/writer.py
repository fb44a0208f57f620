"""Heads as they are sent on: the fields that travel, with our own framing in place of the sender's."""

from __future__ import annotations

from egress.proxy.http.heads import CHUNKED, Field, RequestHead, ResponseHead, lines

UPGRADE: list[Field] = [(b"connection", b"Connection", b"Upgrade"), (b"upgrade", b"Upgrade", b"websocket")]
_CHUNKED = b"Transfer-Encoding: chunked\r\n"


def request_bytes(head: RequestHead, origin_form: bytes, host: bytes, fields: list[Field]) -> bytes:
    """`fields` are end-to-end; the connection's own are written here."""
    start = b"%b %b HTTP/1.1\r\nHost: %b\r\n" % (head.method.encode("ascii"), origin_form, host)
    if head.length == CHUNKED:
        start += _CHUNKED
    if head.wants_websocket:
        fields = [*fields, *UPGRADE]
    written = head.travelling_bytes if fields is head.travelling else lines(fields)
    return start + written + b"\r\n"


def response_bytes(answer: ResponseHead, fields: list[Field], *, close: bool) -> bytes:
    start = b"HTTP/1.1 %d %b\r\n" % (answer.status, answer.reason)
    end = b"\r\n"
    if answer.status < 200 or answer.status == 204:
        fields = [entry for entry in fields if entry[0] != b"content-length"]
    if close and answer.status >= 200:
        end = b"Connection: close\r\n\r\n"
    if answer.length == CHUNKED:
        start += _CHUNKED
    written = answer.travelling_bytes if fields is answer.travelling else lines(fields)
    return start + written + end
