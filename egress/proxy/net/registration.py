"""Whether the loop can wait for a connection; one that it cannot wait for ends, and nothing else does."""

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
        self.claim: Callable[[int], None] = getattr(loop, "claim", lambda _: None)  # see loop.py
        self._clock = loop.time
        self._complained = -math.inf

    def takes(self, transport: asyncio.Transport) -> bool:
        """Ask before the loop has to wait for it. If not, this connection is over."""
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
        """Seldom: this happens again and again."""
        if self._clock() - self._complained >= _BETWEEN_COMPLAINTS:
            self._complained = self._clock()
            log.error("a connection was ended, which the kernel cannot watch: %s. %s", error, _HELP)
