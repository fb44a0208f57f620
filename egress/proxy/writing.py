"""Heads as they are sent on: the fields that travel, and framing of our own in place of the other side's."""

from __future__ import annotations

from .head import CHUNKED, Field, RequestHead, ResponseHead

UPGRADE: list[Field] = [
    (b"connection", b"Connection", b"Upgrade"),
    (b"upgrade", b"Upgrade", b"websocket"),
]


def request_bytes(head: RequestHead, origin_form: bytes, host: bytes, fields: list[Field]) -> bytes:
    """`fields` are end-to-end; the connection's own are written here."""
    lines = [b"%b %b HTTP/1.1\r\nHost: %b\r\n" % (head.method.encode("ascii"), origin_form, host)]
    if head.length == CHUNKED:
        lines.append(b"Transfer-Encoding: chunked\r\n")
    if head.wants_websocket:
        fields = [*fields, *UPGRADE]
    lines += [b"%b: %b\r\n" % (name, value) for key, name, value in fields if key != b"host"]
    lines.append(b"\r\n")
    return b"".join(lines)


def response_bytes(answer: ResponseHead, fields: list[Field], *, close: bool) -> bytes:
    lines = [b"HTTP/1.1 %d %b\r\n" % (answer.status, answer.reason)]
    bodiless = answer.status < 200 or answer.status == 204
    lines += [
        b"%b: %b\r\n" % (name, value)
        for key, name, value in fields
        if not (bodiless and key == b"content-length")
    ]
    if answer.length == CHUNKED:
        lines.append(b"Transfer-Encoding: chunked\r\n")
    if close and answer.status >= 200:
        lines.append(b"Connection: close\r\n")
    lines.append(b"\r\n")
    return b"".join(lines)
