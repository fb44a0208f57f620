"""The sockets bottles connect to: two of its own for each, and one TCP port for those that come with a token.

Trust boundary: which socket a connection came in on is who it is. Sockets live in the bottle's own directory.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from weakref import WeakValueDictionary

from egress.contract.ack import Ack
from egress.proxy.net.connection import Connection, Wakeup
from egress.proxy.process.acceptor import SharedAcceptor
from egress.proxy.process.socket_passing import SocketReceiver
from egress.proxy.process.tcp import BACKLOG
from egress.proxy.process.unix import bind_unix
from egress.proxy.request.client_session import ClientSession, Entry
from egress.proxy.state.bottle import Bottle, exists, found_in
from egress.proxy.state.proxy import Proxy

log = logging.getLogger(__name__)
SOCKETS = "sockets"  # a directory of their own: mounted into the bottle, so that new sockets appear there too
_SOCKETS = {"proxy.sock": Entry.PROXY_SOCKET, "agent.sock": Entry.AGENT_SOCKET}


class Listeners:
    """Opens and closes sockets as bottles come and go."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._loop = asyncio.get_running_loop()  # asking for it each time costs a system call
        self._servers: dict[str, dict[str, asyncio.Server]] = {}  # by bottle and by name
        self._tcp: list[asyncio.Server | SharedAcceptor] = []
        self._reception = SocketReceiver(self._take_in)
        self._refreshing: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._tasks: set[asyncio.Task[None]] = set()
        self.port: int | None = None

    async def open_tcp(self, listening: Sequence[socket.socket]) -> None:
        """What bottles with a token connect to; other processes may take connections from it too."""
        for each in listening:
            self.port = self.port or int(each.getsockname()[1])
            if self._proxy.neighbours:
                porch = SharedAcceptor(self._proxy, each, self._take_in)
                porch.open()
                self._tcp.append(porch)
            else:
                server = await self._loop.create_server(
                    lambda: self._connection(Entry.TCP, None), sock=each, backlog=BACKLOG
                )
                self._tcp.append(server)
                self._proxy.watch.registry.claim(each.fileno())

    def open_reception(self, incoming: socket.socket) -> None:
        """For bottles of ours that another process accepted a connection of."""
        self._reception.open(incoming)

    def _take_in(self, accepted: socket.socket, seen: bytes) -> None:
        self._begin(self._connect(accepted, seen))

    async def _connect(self, accepted: socket.socket, seen: bytes) -> None:
        connection = Connection(Wakeup(), self._proxy.watch)
        connection.buffer += seen
        try:
            transport, _ = await self._loop.connect_accepted_socket(lambda: connection, accepted)
        except OSError as error:
            log.info("a connection was gone before it was served: %s", error.strerror)
            accepted.close()
        else:
            if transport.is_closing():
                accepted.detach()  # the transport has closed it, or will
            else:
                await self._serve(connection, Entry.TCP, None)

    async def refresh(self, slug: str) -> Ack | None:
        """Read a bottle's files again, with its sockets open while it exists. None when it is gone.

        Nothing is live before the operator's own gate, where there is one, knows of it too.
        """
        ack = await self._refresh(slug)
        return _with_gate_problem(await self._proxy.write_pipelock(), ack)

    async def _refresh(self, slug: str) -> Ack | None:
        turn = self._refreshing.setdefault(slug, asyncio.Lock())
        async with turn:  # or one that began before it was removed would open its sockets again
            return await self._read_again(slug)

    async def _read_again(self, slug: str) -> Ack | None:
        if not exists(self._proxy.config.bottles / slug):
            self._close(slug)
            self._proxy.forget(slug)
            return None
        bottle, ack = await self._proxy.load(slug)
        if not self._proxy.stopping:
            try:
                await self._open(bottle)
            except OSError as error:
                bottle.problem = f"The bottle's sockets cannot be opened: {error}."
                log.error("bottle %s: %s", slug, bottle.problem)
                return bottle.ack()
        return ack

    async def refresh_all(self) -> list[Ack]:
        config = self._proxy.config
        ours = (slug for slug in found_in(config.bottles) if config.owner(slug) == config.number)
        known = set(self._proxy.bottles) | set(ours)
        acks = [await self._refresh(slug) for slug in sorted(known)]
        problem = (
            await self._proxy.write_pipelock()
        )  # also without a bottle: an earlier run may have had some
        return [told for ack in acks if (told := _with_gate_problem(problem, ack)) is not None]

    def close(self) -> None:
        """Take no more connections; those that are open go on."""
        for server in self._tcp:
            server.close()
        self._reception.close()
        for slug in list(self._servers):
            self._close(slug)

    async def finish(self) -> None:
        """End what is still being served."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _open(self, bottle: Bottle) -> None:
        """Those that are missing. One that may ask for nothing has no socket to ask at."""
        servers = self._servers.setdefault(bottle.slug, {})
        directory = bottle.directory / SOCKETS
        directory.mkdir(exist_ok=True)
        directory.chmod(0o755)  # the bottle's user may be another one; others do not get this far
        for name, entry in _SOCKETS.items():
            if entry is Entry.AGENT_SOCKET and not bottle.identity.supervise:
                self._close_one(bottle.slug, name)
            elif name not in servers:
                servers[name] = await self._listen(directory / name, entry, bottle)

    async def _listen(self, path: Path, entry: Entry, bottle: Bottle) -> asyncio.Server:
        listening = bind_unix(path, mode=0o666)
        server = await self._loop.create_unix_server(
            lambda: self._connection(entry, bottle), sock=listening, backlog=BACKLOG
        )
        try:
            self._proxy.watch.registry.claim(listening.fileno())
        except OSError:
            server.close()
            raise
        return server

    def _close(self, slug: str) -> None:
        for name in _SOCKETS:
            self._close_one(slug, name)
        self._servers.pop(slug, None)

    def _close_one(self, slug: str, name: str) -> None:
        server = self._servers.get(slug, {}).pop(name, None)
        if server is not None:
            server.close()
        (self._proxy.config.bottles / slug / SOCKETS / name).unlink(missing_ok=True)

    def _connection(self, entry: Entry, bottle: Bottle | None) -> Connection:
        return Connection(
            Wakeup(),
            self._proxy.watch,
            lambda connection: self._begin(self._serve(connection, entry, bottle)),
        )

    def _begin(self, serving: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(serving)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, connection: Connection, entry: Entry, bottle: Bottle | None) -> None:
        self._proxy.conversations.add(connection.bell)
        try:
            await ClientSession(self._proxy, connection, entry, bottle).run()
        finally:
            self._proxy.conversations.discard(connection.bell)


def _with_gate_problem(problem: str | None, ack: Ack | None) -> Ack | None:
    """What is wrong with the bottle's own files comes first."""
    return ack and replace(ack, problem=ack.problem or problem)
