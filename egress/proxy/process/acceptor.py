"""Where connections to the TCP port arrive, when several processes share it.

Whose a connection claims to be is looked at before anything is made of it: half of them, or more, are for
another process. Who does not say so at once is taken in, and handed over when it has.

Trust boundary: these are strangers. Nothing that they say is believed here; at worst it is the wrong process
that finds out who they are not.
"""

from __future__ import annotations

import asyncio
import logging
import socket

from egress.proxy.process.socket_passing import IN_MESSAGE, TakeIn, owner_of, try_pass
from egress.proxy.state.proxy import Proxy

log = logging.getLogger(__name__)
_AT_ONCE = 64
_WITHOUT_ROOM_SECONDS = 0.5  # until it is looked again whether there are descriptors


class SharedAcceptor:
    def __init__(self, proxy: Proxy, listening: socket.socket, take_in: TakeIn) -> None:
        """`take_in` is given a connection, and what was read of it."""
        self._proxy = proxy
        self._listening = listening
        self._take_in = take_in
        self._loop = asyncio.get_running_loop()
        self._later: asyncio.TimerHandle | None = None

    def open(self) -> None:
        try:
            self._loop.add_reader(self._listening, self._accept)
        except OSError as error:
            log.error("no connection can be waited for: %s", error.strerror)
            self._later = self._loop.call_later(_WITHOUT_ROOM_SECONDS, self.open)

    def close(self) -> None:
        if self._later is not None:
            self._later.cancel()
        self._loop.remove_reader(self._listening)
        self._listening.close()

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                accepted, _ = self._listening.accept()
            except (BlockingIOError, ConnectionAbortedError):  # another process was first, or it is gone
                return
            except OSError as error:
                log.error("no connection can be accepted: %s", error.strerror)
                self._loop.remove_reader(self._listening)
                self._later = self._loop.call_later(_WITHOUT_ROOM_SECONDS, self.open)
                return
            accepted.setblocking(False)
            self._welcome(accepted)

    def _welcome(self, accepted: socket.socket) -> None:
        try:
            seen = accepted.recv(IN_MESSAGE)
        except BlockingIOError:
            seen = b""
        except OSError:
            accepted.close()
            return
        if self._pass_to_owner(accepted, seen):
            accepted.close()
        else:
            self._take_in(accepted, seen)

    def _pass_to_owner(self, accepted: socket.socket, seen: bytes) -> bool:
        """Whether it has the connection now."""
        head, end, _ = seen.partition(b"\r\n\r\n")
        if not end:
            return False
        owner = owner_of(self._proxy.config, head)
        if owner == self._proxy.config.number:
            return False
        return try_pass(self._proxy.neighbours[owner], accepted.fileno(), seen)
