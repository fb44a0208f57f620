"""The server name in a TLS ClientHello, however many records it came in.

Trust boundary: bytes from the bottle, before anything is known about them. Reads, never answers.
"""

from __future__ import annotations

from struct import Struct

_HANDSHAKE, _CLIENT_HELLO = 22, 1
_SERVER_NAME, _HOST_NAME = 0, 0
_ENCRYPTED_CLIENT_HELLO = 0xFE0D
_EXTENSION = Struct("!HH")  # its kind and its size
MAX_HELLO = 32 * 1024  # post-quantum key shares make honest ones a few kilobytes
MAX_RECORDS, MAX_EXTENSIONS = 2048, 256  # honest ones have a few, and a few dozen


class BadHello(ValueError):
    """Not a ClientHello that this proxy lets through."""


class HelloReader:
    """Reads every record once, however slowly the bytes arrive."""

    def __init__(self) -> None:
        self._message = bytearray()
        self._position = 0  # of the next record
        self._records = 0

    def server_name(self, received: bytes | bytearray) -> str | None:
        """The lower-case name, or None while more bytes are needed. Raises BadHello.

        `received` is everything so far, from the first byte.
        """
        while not self._is_whole():
            fragment = self._next_fragment(received)
            if fragment is None:
                return None
            self._message += fragment
            self._position += 5 + len(fragment)
            self._records += 1
            if self._records > MAX_RECORDS:
                raise BadHello("the ClientHello comes in too many pieces")
        return _name_in(bytes(self._message[4 : 4 + self._length()]))

    def _length(self) -> int:
        return int.from_bytes(self._message[1:4], "big")

    def _is_whole(self) -> bool:
        if len(self._message) < 4:
            return False
        if self._message[0] != _CLIENT_HELLO:
            raise BadHello("the first message is not a ClientHello")
        if self._length() > MAX_HELLO:
            raise BadHello("the ClientHello is too large")
        return len(self._message) >= 4 + self._length()

    def _next_fragment(self, received: bytes | bytearray) -> bytes | bytearray | None:
        start = self._position
        record = received[start : start + 5]
        if record[:1] not in (b"", bytes([_HANDSHAKE])) or record[1:2] not in (b"", b"\x03"):
            raise BadHello("the connection does not begin with TLS")
        if len(record) < 5:
            return None
        size = int.from_bytes(record[3:5], "big")
        if not 0 < size <= 16384:
            raise BadHello("a TLS record has an impossible size")
        return received[start + 5 : start + 5 + size] if len(received) >= start + 5 + size else None


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def take(self, count: int) -> bytes:
        piece = self._data[self._position : self._position + count]
        if len(piece) < count:
            raise BadHello("the ClientHello is cut short")
        self._position += count
        return piece

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def block(self, size: int) -> bytes:
        """A field whose length stands before it in `size` bytes."""
        return self.take(self.number(size))

    @property
    def empty(self) -> bool:
        return self._position == len(self._data)


def _name_in(hello: bytes) -> str:
    reader = _Reader(hello)
    reader.take(2 + 32)  # version and random
    reader.block(1)  # session
    reader.block(2)  # cipher suites
    reader.block(1)  # compression
    found = _extensions(reader.block(2)) if not reader.empty else {}
    if not reader.empty:
        raise BadHello("the ClientHello has bytes after its end")
    if _ENCRYPTED_CLIENT_HELLO in found:
        raise BadHello("the ClientHello hides the server name (ECH): switch that off in the client")
    if _SERVER_NAME not in found:
        raise BadHello("the ClientHello has no server name (SNI)")
    return _only_name(found[_SERVER_NAME])


def _extensions(block: bytes) -> dict[int, bytes]:
    """By their kind. A hello has a dozen, so the loop calls no function of ours."""
    found: dict[int, bytes] = {}
    position, end = 0, len(block)
    while position < end:
        start = position + _EXTENSION.size
        if start > end:
            raise BadHello("the ClientHello is cut short")
        kind, size = _EXTENSION.unpack_from(block, position)
        position = start + size
        if position > end:
            raise BadHello("the ClientHello is cut short")
        if kind in found:
            raise BadHello("the ClientHello has an extension twice")
        if len(found) == MAX_EXTENSIONS:
            raise BadHello("the ClientHello has too many extensions")
        found[kind] = block[start:position]
    return found


def _only_name(content: bytes) -> str:
    names = _Reader(_Reader(content).block(2))
    if names.number(1) != _HOST_NAME:
        raise BadHello("the server name is not a host name")
    name = names.block(2)
    if not names.empty or len(name) + 5 != len(content):
        raise BadHello("the ClientHello has more than one server name")
    try:
        return name.decode("ascii").lower()
    except UnicodeDecodeError as error:
        raise BadHello("the server name is not ASCII") from error
