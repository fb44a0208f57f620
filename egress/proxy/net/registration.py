"""Makes sure that the event loop can watch a connection. If it cannot, that connection ends alone."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable

log = logging.getLogger(__name__)
_BETWEEN_COMPLAINTS = 60.0
_HELP = "A bottle may have used up this account's epoll watches: stop it (docs/use/bottles-local.md)."


class Registry:
    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        # The loop's own (see process/event_loop.py), where it has one.
        self.claim: Callable[[int], None] = getattr(loop, "claim", lambda _: None)
        self._clock = loop.time
        self._complained = -math.inf

    def takes(self, transport: asyncio.Transport) -> bool:
        """Ask before the loop has to watch it. When False, this connection is over."""
        sock = transport.get_extra_info("socket")
        if sock is None:
            return True
        try:
            self.claim(sock.fileno())
        except (OSError, ValueError) as error:  # or it is closed already
            self._complain(error)
            transport.abort()
            return False
        return True

    def _complain(self, error: Exception) -> None:
        """At most once a minute: this happens again and again."""
        if self._clock() - self._complained >= _BETWEEN_COMPLAINTS:
            self._complained = self._clock()
            log.error("a connection was ended because the kernel cannot watch it: %s. %s", error, _HELP)
