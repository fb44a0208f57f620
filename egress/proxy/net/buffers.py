"""How much the connections of a bottle may keep in memory while it waits for somebody: one number for all.

What has arrived and nobody took yet, and what was written and nobody read yet, is in flight. Every connection
is given its room when it comes and has it until it is closed, so that what is given out is never exceeded.
What is searched or signed on its way takes more, which is counted by the request (see holding.py).
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass

_KIB = 1024


@dataclass(frozen=True, slots=True)
class BufferLimits:
    """The room of each of a connection's two wires, in bytes."""

    read: int  # at once
    unread: int  # by us, before we stop reading; a whole head has to fit
    unsent: int  # before whatever is to be sent there is no longer read
    pipe: int  # in the kernel, in place of all these; without any, nothing is moved there

    @property
    def most(self) -> int:
        """Of both wires: each limit can be exceeded by what comes with one read."""
        return 2 * max(self.unread + self.read + self.unsent + self.read, self.pipe)


NARROW = BufferLimits(read=32 * _KIB, unread=64 * _KIB, unsent=32 * _KIB, pipe=0)
# Less would make large transfers slower. A pipe is as wide as they get without privileges: a quarter of that
# costs a fifth more time.
WIDE = BufferLimits(read=256 * _KIB, unread=128 * _KIB, unsent=256 * _KIB, pipe=1024 * _KIB)


def shared_room(size: int) -> memoryview:
    """For reading into, by all connections in turn.

    It begins in the middle of a page, because the kernel's buffers and large blocks of `malloc` begin at, or
    just behind, the start of one. Some processors (Zen 3) copy up to twenty times slower when the target's
    offset in its page is 1 to 31 bytes more than the source's, as that of a bytearray is.
    """
    middle = mmap.PAGESIZE // 2
    return memoryview(mmap.mmap(-1, middle + size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))[middle:]


class BufferBudget:
    """Wide ones for the first who come; the rest of the room is kept for all others that may come."""

    def __init__(self, room: int, connections: int) -> None:
        """`room` is at least what so many narrow ones take."""
        self._wide_ones = (room - connections * NARROW.most) // (WIDE.most - NARROW.most)

    def take(self) -> BufferLimits:
        if self._wide_ones <= 0:
            return NARROW
        self._wide_ones -= 1
        return WIDE

    def give_back(self, buffer_limits: BufferLimits) -> None:
        if buffer_limits is WIDE:
            self._wide_ones += 1
