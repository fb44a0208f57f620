"""Where connections to the TCP port arrive, when several processes share it: passed on, or taken in.

The owner is read from the first head, once. Half of the connections, or more, belong to another process, so
it is read before anything is made of a connection. One without a whole head yet is taken in, and comes back
here when it has sent one.

Trust boundary: nothing that a head says is believed here. At worst the wrong process finds out that it lies.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable

from egress.proxy.net.connection import Connection
from egress.proxy.process.socket_passing import IN_MESSAGE, owner_of, pass_socket, try_pass
from egress.proxy.request.session_hooks import PassToOwner
from egress.proxy.state.proxy import Proxy

log = logging.getLogger(__name__)
_AT_ONCE = 64
_WITHOUT_ROOM_SECONDS = 0.5  # until it is looked again whether there are descriptors


# Serves a connection, of which these bytes were read. Its owner may still have to be found, or reached.
TakeIn = Callable[[socket.socket, bytes, PassToOwner | None], None]


class SharedAcceptor:
    def __init__(self, proxy: Proxy, listening: socket.socket, take_in: TakeIn) -> None:
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
        head, is_whole, _ = seen.partition(b"\r\n\r\n")
        owner = owner_of(self._proxy.config, head) if is_whole else None
        if owner == self._proxy.config.number:
            self._take_in(accepted, seen, None)
        elif owner is not None and try_pass(self._proxy.neighbours[owner], accepted.fileno(), seen):
            accepted.close()
        else:
            self._take_in(accepted, seen, self._pass_to_owner)

    async def _pass_to_owner(self, connection: Connection, head: bytes) -> bool:
        """Whether another process has the connection now. Raises Refusal, or Gone."""
        owner = owner_of(self._proxy.config, head)
        if owner == self._proxy.config.number:
            return False
        await pass_socket(self._proxy, owner, connection, head)
        return True
