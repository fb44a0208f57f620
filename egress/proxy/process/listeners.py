"""The sockets that bottles connect to: two for each bottle, and one TCP port for those with a token.

Trust boundary: the socket that a connection arrives on says which bottle it is from. Sockets live in the
bottle's own directory.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from weakref import WeakValueDictionary

from egress.contract.ack import Ack
from egress.proxy.net.connection import Connection
from egress.proxy.net.wakeup import Wakeup
from egress.proxy.process.socket_passing import SocketReceiver, pass_to_owner
from egress.proxy.process.tcp import BACKLOG
from egress.proxy.process.unix import bind_unix
from egress.proxy.request.client_session import ClientSession, FastPaths
from egress.proxy.request.session_hooks import Entry, PassToOwner
from egress.proxy.state.bottle import BottleState
from egress.proxy.state.bottle_files import exists, found_in
from egress.proxy.state.proxy import Proxy

log = logging.getLogger(__name__)
SOCKETS = "sockets"  # a directory of their own: mounted into the bottle, so that new sockets appear there too
_SOCKETS = {"proxy.sock": Entry.PROXY_SOCKET, "agent.sock": Entry.AGENT_SOCKET}


class Listeners:
    """Opens and closes sockets as bottles come and go."""

    def __init__(self, proxy: Proxy, fast_paths: FastPaths | None = None) -> None:
        """`fast_paths` makes the fast path of a session, where there is one."""
        self._proxy = proxy
        self._fast_paths = fast_paths
        self._loop = asyncio.get_running_loop()  # asking for it each time costs a system call
        self._servers: dict[str, dict[str, asyncio.Server]] = {}  # by bottle and by name
        self._tcp: list[asyncio.Server] = []
        self._receiver = SocketReceiver(self._take_in)
        self._refreshing: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._tasks: set[asyncio.Task[None]] = set()
        self.port: int | None = None

    async def open_tcp(self, listening: Sequence[socket.socket]) -> None:
        """Serve the port for bottles with a token. Other processes may accept connections from it too."""
        pass_on = partial(pass_to_owner, self._proxy) if self._proxy.neighbours else None
        for each in listening:
            self.port = self.port or int(each.getsockname()[1])
            server = await self._loop.create_server(
                lambda: self._connection(Entry.TCP, None, pass_on), sock=each, backlog=BACKLOG
            )
            self._tcp.append(server)
            self._proxy.watch.registry.claim(each.fileno())

    def receive_from(self, incoming: socket.socket) -> None:
        """Serve the connections of our bottles that other processes accepted."""
        self._receiver.open(incoming)

    def _take_in(self, accepted: socket.socket, seen: bytes) -> None:
        self._begin(self._adopt(accepted, seen))

    async def _adopt(self, accepted: socket.socket, seen: bytes) -> None:
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
        return _with_gate_problem(await self._proxy.gate_file.publish(self._proxy.bottles.gate_hosts), ack)

    async def _refresh(self, slug: str) -> Ack | None:
        turn = self._refreshing.setdefault(slug, asyncio.Lock())
        async with turn:  # a refresh that began before a removal must not open the sockets again
            return await self._read_again(slug)

    async def _read_again(self, slug: str) -> Ack | None:
        if not exists(self._proxy.config.bottles / slug):
            self._close(slug)
            self._proxy.bottles.forget(slug)
            return None
        bottle, ack = await self._proxy.bottles.load(slug)
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
        problem = await self._proxy.gate_file.publish(
            self._proxy.bottles.gate_hosts
        )  # also without a bottle: an earlier run may have had some
        return [each for ack in acks if (each := _with_gate_problem(problem, ack)) is not None]

    def close(self) -> None:
        """Accept no more connections; those that are open continue."""
        for server in self._tcp:
            server.close()
        self._receiver.close()
        for slug in list(self._servers):
            self._close(slug)

    async def finish(self) -> None:
        """Cancel the tasks that still serve a connection."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _open(self, bottle: BottleState) -> None:
        """Open the sockets that are missing. A bottle that may not ask for anything has no agent socket."""
        servers = self._servers.setdefault(bottle.slug, {})
        directory = bottle.directory / SOCKETS
        directory.mkdir(exist_ok=True)
        directory.chmod(0o755)  # the bottle may run as another user
        for name, entry in _SOCKETS.items():
            if entry is Entry.AGENT_SOCKET and not bottle.identity.supervise:
                self._close_one(bottle.slug, name)
            elif name not in servers:
                servers[name] = await self._listen(directory / name, entry, bottle)

    async def _listen(self, path: Path, entry: Entry, bottle: BottleState) -> asyncio.Server:
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

    def _connection(
        self, entry: Entry, bottle: BottleState | None, pass_on: PassToOwner | None = None
    ) -> Connection:
        return Connection(
            Wakeup(),
            self._proxy.watch,
            lambda connection: self._begin(self._serve(connection, entry, bottle, pass_on)),
        )

    def _begin(self, serving: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(serving)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(
        self,
        connection: Connection,
        entry: Entry,
        bottle: BottleState | None,
        pass_on: PassToOwner | None = None,
    ) -> None:
        self._proxy.sessions.add(connection.bell)
        session = ClientSession(
            self._proxy, connection, entry, bottle,
            fast_paths=self._fast_paths, pass_to_owner=pass_on,
        )  # fmt: skip
        try:
            await session.run()
        finally:
            self._proxy.sessions.discard(connection.bell)


def _with_gate_problem(problem: str | None, ack: Ack | None) -> Ack | None:
    """The ack with the gate's problem, unless the bottle's own files have one."""
    return ack and replace(ack, problem=ack.problem or problem)
