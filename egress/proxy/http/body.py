"""Message bodies: where one ends, and nothing else. Chunked bodies are decoded strictly and framed again.

Trust boundary: chunk sizes and trailers are off the wire. A body that breaks the rules raises ValueError.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Protocol

from egress.proxy.http import override_headers
from egress.proxy.http.heads import CHUNKED, OUR_OWN, TOKEN, UNTIL_CLOSE, folded

_SIZE = re.compile(rb"[0-9A-Fa-f]{1,15}")
_TRAILER = re.compile(rb"(" + TOKEN + rb"):[ \t]*([\t\x20-\x7e\x80-\xff]*)")
_MAX_LINE = 4096
_MAX_TRAILERS = 32
_CHUNKED_PART = 4 * 1024
# A trailer arrives after the decision was made, so it may carry nothing that a decision depends on.
_NOT_IN_TRAILERS = override_headers.ALL | {
    OUR_OWN,
    *b"""
    host content-length transfer-encoding connection upgrade te trailer expect authorization
    proxy-authorization cookie set-cookie content-encoding content-type content-range range if-range location
    """.split(),
}


class Body(Protocol):
    """`feed` returns the payload in `data`; once `finished`, `rest` is what came after the body."""

    finished: bool
    rest: bytes

    def feed(self, data: bytes) -> bytes: ...

    def end(self) -> None:
        """No more data will come. Raises ValueError if some is missing."""


def body_of(length: int) -> Body:
    if length == 0:
        return NOTHING
    if length == CHUNKED:
        return ChunkedBody()
    return UntilClose() if length == UNTIL_CLOSE else SizedBody(length)


class SizedBody:
    def __init__(self, length: int) -> None:
        self.missing = length
        self.finished = length == 0
        self.rest = b""

    def feed(self, data: bytes) -> bytes:
        if len(data) > self.missing:
            data, self.rest = data[: self.missing], data[self.missing :]
        self.missing -= len(data)
        self.finished = self.missing == 0
        return data

    def end(self) -> None:
        if not self.finished:
            raise ValueError("the body ended too early")


NOTHING = SizedBody(0)  # shared: a finished body never changes


class UntilClose:
    def __init__(self) -> None:
        self.finished = False
        self.rest = b""

    def feed(self, data: bytes) -> bytes:
        return data

    def end(self) -> None:
        self.finished = True


class ChunkedBody:
    """No extensions, no spaces around sizes, CR LF only: all of these have been used to hide requests."""

    def __init__(self) -> None:
        self.finished = False
        self.rest = b""
        self.trailers: list[tuple[bytes, bytes]] = []
        self._line = b""
        self._missing = 0
        self._expect = "size"

    def feed(self, data: bytes) -> bytes:
        payload: list[bytes] = []
        position = 0
        while position < len(data) and not self.finished:
            if self._missing:
                piece = data[position : position + self._missing]
                payload.append(piece)
                position += len(piece)
                self._missing -= len(piece)
            else:
                position = self._read_line(data, position)
        if self.finished:
            self.rest = data[position:]
        return payload[0] if len(payload) == 1 else b"".join(payload)

    def end(self) -> None:
        if not self.finished:
            raise ValueError("the body ended too early")

    def _read_line(self, data: bytes, position: int) -> int:
        """Consume the data up to and including the next LF; keep an unfinished line for the next call."""
        end = data.find(b"\n", position)
        self._line += data[position:] if end < 0 else data[position : end + 1]
        if self._expect == "end of chunk" and not b"\r\n".startswith(self._line):
            raise ValueError("a chunk is longer than its size")
        if len(self._line) > _MAX_LINE:
            raise ValueError("a chunk header or trailer is too long")
        if end < 0:
            return len(data)
        line, self._line = self._line, b""
        if not line.endswith(b"\r\n") or b"\r" in line[:-2]:
            raise ValueError("a line of a chunked body does not end with CR LF")
        self._take_line(line[:-2])
        return end + 1

    def _take_line(self, line: bytes) -> None:
        if self._expect == "end of chunk":
            self._expect = "size"
        elif self._expect == "size":
            if not _SIZE.fullmatch(line):
                raise ValueError("a chunk size is not a plain hexadecimal number")
            self._missing = int(line, 16)
            self._expect = "end of chunk" if self._missing else "trailers"
        elif line:
            self._take_trailer(line)
        else:
            self.finished = True

    def _take_trailer(self, line: bytes) -> None:
        match = _TRAILER.fullmatch(line)
        if match is None or folded(match[1].lower()) in _NOT_IN_TRAILERS:
            raise ValueError("a trailer is malformed or may not be a trailer")
        if len(self.trailers) >= _MAX_TRAILERS:
            raise ValueError("there are too many trailers")
        self.trailers.append((match[1], match[2]))


def payloads(data: bytes, body: Body) -> Iterator[bytes]:
    """Yield the payload in `data`, a step at a time: chunks can be one byte each."""
    size = _CHUNKED_PART if isinstance(body, ChunkedBody) else max(1, len(data))
    for start in range(0, len(data), size):
        payload = body.feed(data[start : start + size])
        if body.finished:
            body.rest += data[start + size :]
            yield payload
            return
        yield payload


def chunk(payload: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(payload), payload)


def last_chunk(trailers: list[tuple[bytes, bytes]]) -> bytes:
    return b"0\r\n" + b"".join(b"%b: %b\r\n" % trailer for trailer in trailers) + b"\r\n"
