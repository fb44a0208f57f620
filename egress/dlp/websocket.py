"""Scans WebSocket frames of a client, and redacts those of a server. Pure.

Trust boundary: frames come from a bottle, or from an origin that knows a secret. No extensions are negotiated
where this is used, so frames have no reserved bits, and only a client's are masked; anything else raises
Unreadable.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple

from egress.dlp.decoding import Unreadable
from egress.dlp.expressions import Matcher
from egress.dlp.redaction import Scrubber
from egress.dlp.scanner import OVERLAP, WINDOW, Orders, Scanner, Steps, Text

_PART = 4 * 1024  # input of one step: it may be hundreds of frames
_CONTROL = 8  # the first opcode of the control frames, which may stand between the parts of a message
_LAST = 0x80  # of its message
# Memory of a connection: in each direction one frame, with the part that ended it; two outgoing texts, two
# incoming ones, and one that is searched for orders.
MEMORY_OF_FRAMES = 2 * (WINDOW + _PART + Text.MEMORY + OVERLAP) + OVERLAP


class _FrameHead(NamedTuple):
    first: int
    size: int
    mask: bytes
    length: int  # of the head itself

    @property
    def opcode(self) -> int:
        return self.first & 0x0F

    @property
    def is_control(self) -> bool:
        return self.opcode >= _CONTROL


def _head_at(data: bytearray, place: int, *, masked: bool) -> _FrameHead | None:
    """Read a frame's head, or return None if it is incomplete. Raises Unreadable."""
    head = data[place : place + 14]
    if len(head) < 2:
        return None
    if head[0] & 0x70 or (head[1] >= 0x80) is not masked:
        wrong = "masked" if not masked else "not masked"
        raise Unreadable(f"a WebSocket frame is {wrong} or uses an extension")
    size = head[1] & 0x7F
    more = {126: 2, 127: 8}.get(size, 0)
    length = 2 + more + (4 if masked else 0)
    if len(head) < length:
        return None
    size = int.from_bytes(head[2 : 2 + more]) if more else size
    return _FrameHead(head[0], size, bytes(head[2 + more : length]), length)


class FrameScan:
    """Scans a client's frames and releases them unchanged.

    A frame of up to 64 KiB waits until it is complete; of a longer one the end is held back. A secret that is
    spread over several frames is found when its last part arrives. The payload of pings, pongs and closes is
    a separate text, because they are not part of the message they interrupt.
    """

    def __init__(self, scanner: Scanner) -> None:
        self._texts = (Text(scanner), Text(scanner))  # messages, control frames
        self._unsearched = (bytearray(), bytearray())
        self._held = bytearray()
        self._seen = 0  # how much of the buffer was read
        self._frame = 0  # where the current frame begins in it
        self._size = 0
        self._missing = 0
        self._mask = b""
        self._is_control = False

    def steps(self, data: bytes, *, last: bool) -> Steps:
        released = bytearray()
        for start in range(0, len(data), _PART):
            self._held += data[start : start + _PART]
            released += self._read()
            yield
        if last:
            released += self._held
            self._held.clear()
        return bytes(released)

    def _read(self) -> bytes:
        """Return what may be sent on. Small frames are searched together, as each search has an overlap."""
        while self._missing or self._read_head():
            self._read_payload()
            if self._missing:
                break
        for text, unsearched in zip(self._texts, self._unsearched, strict=True):
            if unsearched:
                text.scan(bytes(unsearched), last=False)
                unsearched.clear()
        released = bytes(self._held[: self._releasable()])
        del self._held[: len(released)]
        self._seen -= len(released)
        self._frame -= len(released)
        return released

    def _releasable(self) -> int:
        if not self._missing:
            return self._seen
        return self._frame if self._size <= WINDOW else max(0, self._seen - OVERLAP)

    def _read_head(self) -> bool:
        """Return False if the head is incomplete."""
        head = _head_at(self._held, self._seen, masked=True)
        if head is None:
            return False
        self._size = self._missing = head.size
        self._mask = head.mask
        self._is_control = head.is_control
        self._frame = self._seen
        self._seen += head.length
        return True

    def _read_payload(self) -> None:
        payload = bytes(self._held[self._seen : self._seen + self._missing])
        self._unsearched[self._is_control].extend(_xor(payload, self._mask))
        self._seen += len(payload)
        self._missing -= len(payload)
        turned = len(payload) % 4
        self._mask = self._mask[turned:] + self._mask[:turned]


class FrameScrub:
    """Redacts a server's messages. Each message is one text, in any number of frames; a control frame's
    payload is another.

    A frame of up to 64 KiB waits until it is complete, and then leaves at once if it ends its message.
    Otherwise what could be the beginning of a secret waits for more. Parts of a message that arrive together
    are redacted together, because each redaction has an overlap: so a message may be framed differently.

    `orders` are searched for in messages.
    """

    def __init__(self, literals: Matcher, orders: Orders | None = None) -> None:
        self._message, self._control = Scrubber(literals), Scrubber(literals)
        self._orders = orders
        self._held = bytearray()
        self._text = bytearray()  # of the message, to be redacted
        self._missing = 0  # of the current data frame
        self._ends = True  # the message, with the current frame
        self._opcode = 0  # for the next written frame of the message

    @property
    def count(self) -> int:
        return self._message.count + self._control.count

    def steps(self, data: bytes) -> Steps:
        cleaned, start = bytearray(), 0
        while start < len(data):
            end = start + max(_PART, min(self._missing, WINDOW))
            self._held += data[start:end]
            start = end
            while (yield from self._read_some(cleaned)):
                yield  # the input may be thousands of frames
            if self._text:
                yield from self._write(cleaned, last=False)
            yield
        return bytes(cleaned)

    def _read_some(self, cleaned: bytearray) -> Generator[None, None, bool]:
        """Return False if more data is needed."""
        if self._missing:
            part = self._take(min(self._missing, len(self._held)))
            self._missing -= len(part)
            self._text += part
        else:
            head = _head_at(self._held, 0, masked=False)
            if head is None or (head.size <= WINDOW and len(self._held) < head.length + head.size):
                return False
            self._check(head)
            self._take(head.length)
            if head.is_control:
                cleaned += _framed(head.first, self._control.clean(self._take(head.size)))
                return True
            self._ends, self._missing = bool(head.first & _LAST), head.size
            self._opcode = head.opcode or self._opcode
        if self._ends and not self._missing:
            yield from self._write(cleaned, last=True)
        return bool(self._held)

    def _check(self, head: _FrameHead) -> None:
        if head.is_control:
            if head.size > 125 or not head.first & _LAST:
                raise Unreadable("a WebSocket control frame is too long or only a part of one")
        elif (head.opcode == 0) is self._ends:
            raise Unreadable("a WebSocket message begins within another one, or goes on without a beginning")

    def _take(self, count: int) -> bytes:
        taken = bytes(self._held[:count])
        del self._held[:count]
        return taken

    def _write(self, cleaned: bytearray, *, last: bool) -> Generator[None, None, None]:
        if self._orders is not None:
            self._orders.scan(bytes(self._text), last=last)
        text = yield from self._message.steps(bytes(self._text), last=last)
        self._text.clear()
        if text or last:
            cleaned += _framed(self._opcode | (_LAST if last else 0), text)
            self._opcode = 0


def _framed(first: int, payload: bytes) -> bytes:
    size = len(payload)
    if size < 126:
        return bytes((first, size)) + payload
    if size < 1 << 16:
        return bytes((first, 126)) + size.to_bytes(2) + payload
    return bytes((first, 127)) + size.to_bytes(8) + payload


def _xor(payload: bytes, mask: bytes) -> bytes:
    size = len(payload)
    repeated = (mask * (size // 4 + 1))[:size]
    return (int.from_bytes(payload, "big") ^ int.from_bytes(repeated, "big")).to_bytes(size, "big")
