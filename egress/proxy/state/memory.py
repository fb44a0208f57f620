"""The memory that a bottle's requests take: bodies that are to be signed, and what searching needs."""

from __future__ import annotations

from egress.proxy.errors import Refusal
from egress.proxy.state.bottle import BottleState


class MemoryReservation:
    """One request's part of it, counted against its bottle until it is released."""

    def __init__(self, bottle: BottleState, most: int) -> None:
        self._bottle = bottle
        self._most = most
        self._sizes: dict[str, int] = {}

    def keep(self, what: str, size: int) -> None:
        """From now on `size` bytes for `what`. Raises Refusal when the bottle would have too much."""
        more = size - self._sizes.get(what, 0)
        if more > 0 and self._bottle.held_bytes + more > self._most:
            self._bottle.counters["turned away"] += 1
            raise Refusal(
                "too-much-held",
                f"The bottle's open requests need too much of the proxy's memory, over {self._most} bytes."
                " Send fewer large bodies at once, or without compression.",
                503,
            )
        self._bottle.held_bytes += more
        self._sizes[what] = size

    def release(self) -> None:
        self._bottle.held_bytes -= sum(self._sizes.values())
        self._sizes.clear()
