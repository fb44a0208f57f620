"""What a WebSocket client sends, unmasked and searched before it goes on. Pure.

Trust boundary: frames come from a bottle. Without extensions, which are not negotiated where this is used,
only masked frames without reserved bits are valid; anything else raises Unreadable.
"""

from __future__ import annotations

from .decoding import Unreadable
from .dlp import OVERLAP, WINDOW, Scanner, Text


class FrameScan:
    """Gives frames back as they were. One of up to 64 KiB waits until it is whole, a longer one has its end
    held back. A secret that is spread over several is found when the last part comes.
    """

    def __init__(self, scanner: Scanner) -> None:
        self._text = Text(scanner)
        self._held = bytearray()
        self._seen = 0  # how much of what is held was searched
        self._frame = 0  # where in it the frame under way begins
        self._size = 0
        self._missing = 0
        self._mask = b""

    def feed(self, data: bytes, *, last: bool) -> bytes:
        self._held += data
        while self._missing or self._read_head():
            self._read_payload()
            if self._missing:
                break
        released = bytes(self._held) if last else bytes(self._held[: self._releasable()])
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
        self._frame = self._seen
        self._seen += 6 + more
        return True

    def _read_payload(self) -> None:
        payload = bytes(self._held[self._seen : self._seen + self._missing])
        self._text.look_at(_xor(payload, self._mask), last=False)
        self._seen += len(payload)
        self._missing -= len(payload)
        turned = len(payload) % 4
        self._mask = self._mask[turned:] + self._mask[:turned]


def _xor(payload: bytes, mask: bytes) -> bytes:
    size = len(payload)
    repeated = (mask * (size // 4 + 1))[:size]
    return (int.from_bytes(payload, "big") ^ int.from_bytes(repeated, "big")).to_bytes(size, "big")
