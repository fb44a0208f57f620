"""What a WebSocket client sends, unmasked and searched before it goes on. Pure.

Trust boundary: frames come from a bottle. Without extensions, which are not negotiated where this is used,
only masked frames without reserved bits are valid; anything else raises Unreadable.
"""

from __future__ import annotations

from .decoding import Unreadable
from .dlp import OVERLAP, WINDOW, Scanner, Steps, Text

_PART = 4 * 1024  # what one step reads: it may be hundreds of frames
_CONTROL = 8  # the first opcode of those that may stand between the parts of a message


class FrameScan:
    """Gives frames back as they were. One of up to 64 KiB waits until it is whole, a longer one has its end
    held back. A secret that is spread over several is found when the last part comes; what pings, pongs and
    closes carry is a text of its own, because they are not part of the message they interrupt.
    """

    def __init__(self, scanner: Scanner) -> None:
        self._texts = (Text(scanner), Text(scanner))  # messages, control frames
        self._unsearched = (bytearray(), bytearray())
        self._held = bytearray()
        self._seen = 0  # how much of what is held was read
        self._frame = 0  # where in it the frame under way begins
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
        """What may go on of all that is there. Small frames are searched together: each search looks back."""
        while self._missing or self._read_head():
            self._read_payload()
            if self._missing:
                break
        for text, unsearched in zip(self._texts, self._unsearched, strict=True):
            if unsearched:
                text.look_at(bytes(unsearched), last=False)
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
        """False when it is not all there yet."""
        head = self._held[self._seen : self._seen + 14]
        if len(head) < 2:
            return False
        if head[0] & 0x70 or not head[1] & 0x80:
            raise Unreadable("a WebSocket frame is not masked or uses an extension")
        size = head[1] & 0x7F
        more = {126: 2, 127: 8}.get(size, 0)
        if len(head) < 2 + more + 4:
            return False
        self._size = self._missing = int.from_bytes(head[2 : 2 + more], "big") if more else size
        self._mask = bytes(head[2 + more : 6 + more])
        self._is_control = head[0] & 0x0F >= _CONTROL
        self._frame = self._seen
        self._seen += 6 + more
        return True

    def _read_payload(self) -> None:
        payload = bytes(self._held[self._seen : self._seen + self._missing])
        self._unsearched[self._is_control].extend(_xor(payload, self._mask))
        self._seen += len(payload)
        self._missing -= len(payload)
        turned = len(payload) % 4
        self._mask = self._mask[turned:] + self._mask[:turned]


def _xor(payload: bytes, mask: bytes) -> bytes:
    size = len(payload)
    repeated = (mask * (size // 4 + 1))[:size]
    return (int.from_bytes(payload, "big") ^ int.from_bytes(repeated, "big")).to_bytes(size, "big")
