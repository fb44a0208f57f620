"""Request and response heads, read strictly: an ambiguous head is refused, not repaired.

Trust boundary: every byte here is off the wire. A head must satisfy our grammar and llhttp, which others
wrote for other purposes, so that a mistake in one of them is not enough.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache

import httptools

from egress.proxy.errors import BadAnswer, BadRequest

Field = tuple[bytes, bytes, bytes]  # lower-case name, name as sent, value

TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_FIELDS = rb"((?:" + TOKEN + rb":[\t\x20-\x7e\x80-\xff]*+\r\n)*+)\r\n"
_REQUEST = re.compile(rb"([A-Z][A-Z-]{0,31}) ([\x21-\x7e]++) HTTP/(1\.[01])\r\n" + _FIELDS)
_RESPONSE = re.compile(rb"HTTP/(1\.[01]) ([1-9][0-9]{2})(?: ([\t\x20-\x7e\x80-\xff]*+))?\r\n" + _FIELDS)
_FIELD = re.compile(rb"([^:\r\n]+):[ \t]*+((?:[^ \t\r\n]++|[ \t]++(?!\r\n))*+)[ \t]*+\r\n")
_LENGTH = re.compile(rb"0|[1-9][0-9]{0,17}")

# This proxy acts on them, so with two of them, or one named in Connection, it would be unclear which counts.
_SINGLE = frozenset(b"host content-length transfer-encoding expect upgrade proxy-authorization".split())
_NEVER_HOP_BY_HOP = frozenset(
    b"""
    host content-length content-type content-encoding authorization cookie expect trailer
    """.split()
)
HOP_BY_HOP = frozenset(
    b"""
    connection proxy-connection keep-alive te transfer-encoding upgrade http2-settings proxy-authorization
    proxy-authenticate proxy-authentication-info
    """.split()
)
OUR_OWN = b"x-egress-reason"  # marks our refusals: no origin may send it
_NOT_SENT_ON = HOP_BY_HOP | {b"host", OUR_OWN}
_ACTED_ON = _SINGLE | HOP_BY_HOP | {b"content-encoding", b"content-type"}
_AS_DASHES = bytes.maketrans(b"!#$%&'*+.^_`|~", b"-" * 14)
_CACHED_BYTES = 2048
# Most origins take 8 KiB, some load balancers 16. Presigned URLs and GraphQL in a query are well below.
_MAX_TARGET = 16 * 1024
_MAX_CONNECTION_TOKENS = 64
CHUNKED = -1
UNTIL_CLOSE = -2


@dataclass(slots=True)
class Head:
    """`length` is the body's size, CHUNKED or (answers only) UNTIL_CLOSE.

    `travelling` are the fields that are sent on: not Host, nor those that belong to this connection alone.

    `names` are theirs, folded. Collections are shared with other heads that have the same fields: read them,
    never change them.
    """

    version: bytes
    fields: list[Field]
    single: dict[bytes, bytes]
    connection: frozenset[bytes]
    travelling: list[Field]
    travelling_bytes: bytes
    names: frozenset[bytes]
    length: int = 0

    def values(self, name: bytes) -> list[bytes]:
        return [value for key, _, value in self.fields if key == name]


@dataclass(slots=True)
class RequestHead(Head):
    """Shared with other requests of the same bytes: read it, never change it."""

    method: str = ""
    target: bytes = b""

    @property
    def keeps_alive(self) -> bool:
        return self.version == b"1.1" and b"close" not in self.connection

    def with_length(self, length: int) -> RequestHead:
        """The same request with a body that is already here, whose size is known."""
        framing = (b"content-length", b"transfer-encoding", b"expect", b"trailer")
        fields = [entry for entry in self.fields if entry[0] not in framing]
        fields.append((b"content-length", b"Content-Length", str(length).encode("ascii")))
        travelling = _travelling(fields, self.connection)
        return replace(
            self, fields=fields, travelling=travelling, travelling_bytes=lines(travelling),
            names=_folded_names(travelling), length=length,
        )  # fmt: skip

    @property
    def wants_websocket(self) -> bool:
        return (
            b"upgrade" in self.connection
            and self.method == "GET"
            and self.length == 0
            and self.single.get(b"upgrade", b"").lower() == b"websocket"
        )


@dataclass(slots=True)
class ResponseHead(Head):
    status: int = 0
    reason: bytes = b""

    @property
    def keeps_alive(self) -> bool:
        return self.version == b"1.1" and b"close" not in self.connection and self.length != UNTIL_CLOSE


def parse_request(raw: bytes, *, max_fields: int) -> RequestHead:
    """`raw` ends with the empty line. Tools repeat requests, so the latest are cached. Raises BadRequest."""
    return (_cached_request if len(raw) <= _CACHED_BYTES else _read_request)(raw, max_fields)


def _read_request(raw: bytes, max_fields: int) -> RequestHead:
    match = _REQUEST.fullmatch(raw)
    if match is None:
        raise BadRequest("bad-head", _what_is_wrong(raw))
    method, target, version, block = match.groups()
    if len(target) > _MAX_TARGET:
        raise BadRequest("too-large", f"The URL is longer than {_MAX_TARGET} bytes. Shorten it.", 414)
    if block.count(b"\r\n") > max_fields:
        raise BadRequest("too-many-headers", f"The request has more than {max_fields} headers.", 431)
    try:
        fields = _parsed(block, is_request=True)
        head = RequestHead(version, *fields, method=method.decode("ascii"), target=target)
        if head.length:
            _check_request_length(head)
        _ask_llhttp(httptools.HttpRequestParser, raw)
    except ValueError as error:
        raise BadRequest("bad-head", f"The request was refused: {error}.") from error
    return head


_cached_request = lru_cache(maxsize=512)(_read_request)


def parse_response(raw: bytes, *, max_fields: int, to_head: bool) -> ResponseHead:
    """`to_head` says that the request was a HEAD, whose answer has no body. Raises BadAnswer."""
    match = _RESPONSE.fullmatch(raw)
    if match is None:
        raise BadAnswer("The origin's answer is not well-formed HTTP/1.1.")
    version, status, reason, block = match.groups()
    if block.count(b"\r\n") > max_fields:
        raise BadAnswer(f"The origin's answer has more than {max_fields} headers.")
    try:
        fields = _parsed(block, is_request=False)
        head = ResponseHead(version, *fields, status=int(status), reason=reason or b"")
        head.length = _response_length(head, to_head)
        _ask_llhttp(httptools.HttpResponseParser, raw)
    except ValueError as error:
        raise BadAnswer(f"The origin's answer was refused: {error}.") from error
    return head


_Parsed = tuple[list[Field], dict[bytes, bytes], frozenset[bytes], list[Field], bytes, frozenset[bytes], int]


def _parsed(block: bytes, *, is_request: bool) -> _Parsed:
    """Return the meaning of a head's fields. Tools repeat theirs, so the latest blocks are cached."""
    return (_cached if len(block) <= _CACHED_BYTES else _read_block)(block, is_request)


@lru_cache(maxsize=512)
def _cached(block: bytes, is_request: bool) -> _Parsed:
    return _read_block(block, is_request)


def folded(key: bytes) -> bytes:
    """A lower-case name as read by servers that turn headers into variables: 'x_host' is 'x-host' to them."""
    return key.translate(_AS_DASHES)


def _read_block(block: bytes, is_request: bool) -> _Parsed:
    """Raises ValueError for fields that contradict each other, or that can be read in two ways."""
    fields = [(name.lower(), name, value) for name, value in _FIELD.findall(block)]
    if is_request:
        _check_spelling(fields)
    single: dict[bytes, bytes] = {}
    own: list[bytes] = []
    for key, _, value in fields:
        if key in _SINGLE:
            if key in single:
                raise ValueError(f"it has two {key.decode('ascii')} headers")
            single[key] = value
        elif key in (b"connection", b"proxy-connection"):
            own.append(value)
    connection = _connection_tokens(b",".join(own)) if own else frozenset()
    travelling = _travelling(fields, connection)
    texts = lines(travelling), _folded_names(travelling)
    return fields, single, connection, travelling, *texts, _declared_length(single)


def _folded_names(fields: list[Field]) -> frozenset[bytes]:
    return frozenset([folded(key) for key, _, _ in fields])


def _connection_tokens(text: bytes) -> frozenset[bytes]:
    if text.count(b",") >= _MAX_CONNECTION_TOKENS:
        raise ValueError(f"its Connection header names more than {_MAX_CONNECTION_TOKENS} headers")
    tokens = frozenset([token.strip(b" \t").lower() for token in text.split(b",")])
    if tokens & _NEVER_HOP_BY_HOP:
        raise ValueError("its Connection header names a header that must travel on")
    return tokens


def _travelling(fields: list[Field], connection: frozenset[bytes]) -> list[Field]:
    dropped = _NOT_SENT_ON | connection
    return [entry for entry in fields if entry[0] not in dropped]


def lines(fields: list[Field]) -> bytes:
    return b"".join([b"%b: %b\r\n" % (name, value) for _, name, value in fields])


def _declared_length(single: dict[bytes, bytes]) -> int:
    """The declared length of the body; 0 without a declaration."""
    coding = single.get(b"transfer-encoding")
    length = single.get(b"content-length")
    if b"expect" in single and single[b"expect"].lower() != b"100-continue":
        raise ValueError("its Expect header is not '100-continue'")
    if coding is not None:
        if length is not None:
            raise ValueError("it has both Content-Length and Transfer-Encoding")
        if coding.lower() != b"chunked":
            raise ValueError("its Transfer-Encoding is not 'chunked'")
        return CHUNKED
    if length is None:
        return 0
    if not _LENGTH.fullmatch(length):
        raise ValueError("its Content-Length is not a plain number")
    return int(length)


def _check_spelling(fields: list[Field]) -> None:
    """A header that means nothing to us must not be the length of the body to the origin."""
    for key, _, _ in fields:
        if (name := folded(key)) != key and name in _ACTED_ON:
            raise ValueError(f"its header {name.decode('ascii')} is spelt without '-'")


def _check_version(head: Head) -> None:
    if head.length == CHUNKED and head.version != b"1.1":
        raise ValueError("Transfer-Encoding needs HTTP/1.1")


def _check_request_length(head: RequestHead) -> None:
    _check_version(head)
    if head.method in ("CONNECT", "TRACE"):
        raise ValueError(f"{head.method} has no body")
    if len(head.values(b"content-type")) > 1:  # origins may send two of them, and do
        raise ValueError("it has two content-type headers")


def _response_length(head: ResponseHead, to_head: bool) -> int:
    _check_version(head)
    if to_head or head.status < 200 or head.status in (204, 304):
        return 0
    if head.length == 0 and b"content-length" not in head.single:
        return UNTIL_CLOSE
    return head.length


def _ask_llhttp(parser: type[httptools.HttpRequestParser | httptools.HttpResponseParser], raw: bytes) -> None:
    try:
        parser(object()).feed_data(raw)  # only asks whether it accepts the head
    except httptools.HttpParserUpgrade:
        pass
    except httptools.HttpParserError as error:
        raise ValueError("it is not well-formed HTTP/1.1") from error


def _what_is_wrong(raw: bytes) -> str:
    start = raw.partition(b"\r\n")[0]
    if re.fullmatch(rb"[A-Za-z]+ \S+ HTTP/[0-9.]+", start) and not start.endswith((b"HTTP/1.1", b"HTTP/1.0")):
        return "This proxy speaks HTTP/1.1. Use that version, or HTTP/2 inside a CONNECT tunnel."
    if re.search(rb"(?<!\r)\n|\r(?!\n)", raw):
        return "The request was refused: lines end with CR LF, and no other CR or LF may occur."
    if re.search(rb"\r\n[ \t]", raw):
        return "The request was refused: a header is folded over two lines. Write it on one."
    return "The request was refused: its head is not well-formed HTTP/1.1."
