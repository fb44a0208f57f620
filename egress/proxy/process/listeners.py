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

from egress.proxy.net.connection import Doorbell, Wire
from egress.proxy.process.acceptor import Porch
from egress.proxy.process.socket_passing import Reception
from egress.proxy.process.tcp import BACKLOG
from egress.proxy.process.unix import bind_unix
from egress.proxy.request.client_session import Conversation, Door
from egress.proxy.state.bottle import Ack, Bottle, exists, found_in
from egress.proxy.state.proxy import DataPlane

log = logging.getLogger(__name__)
SOCKETS = "sockets"  # a directory of their own: mounted into the bottle, so that new sockets appear there too
_SOCKETS = {"proxy.sock": Door.PROXY_SOCKET, "agent.sock": Door.AGENT_SOCKET}


class Listeners:
    """Opens and closes sockets as bottles come and go."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane
        self._loop = asyncio.get_running_loop()  # asking for it each time costs a system call
        self._servers: dict[str, dict[str, asyncio.Server]] = {}  # by bottle and by name
        self._tcp: list[asyncio.Server | Porch] = []
        self._reception = Reception(self._take_in)
        self._refreshing: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._tasks: set[asyncio.Task[None]] = set()
        self.port: int | None = None

    async def open_tcp(self, listening: Sequence[socket.socket]) -> None:
        """What bottles with a token connect to; other processes may take connections from it too."""
        for each in listening:
            self.port = self.port or int(each.getsockname()[1])
            if self._plane.neighbours:
                porch = Porch(self._plane, each, self._take_in)
                porch.open()
                self._tcp.append(porch)
            else:
                server = await self._loop.create_server(
                    lambda: self._wire(Door.TCP, None), sock=each, backlog=BACKLOG
                )
                self._tcp.append(server)
                self._plane.watch.registry.claim(each.fileno())

    def open_reception(self, incoming: socket.socket) -> None:
        """For bottles of ours that another process accepted a connection of."""
        self._reception.open(incoming)

    def _take_in(self, accepted: socket.socket, seen: bytes) -> None:
        self._begin(self._connect(accepted, seen))

    async def _connect(self, accepted: socket.socket, seen: bytes) -> None:
        wire = Wire(Doorbell(), self._plane.watch)
        wire.buffer += seen
        try:
            transport, _ = await self._loop.connect_accepted_socket(lambda: wire, accepted)
        except OSError as error:
            log.info("a connection was gone before it was served: %s", error.strerror)
            accepted.close()
        else:
            if transport.is_closing():
                accepted.detach()  # the transport has closed it, or will
            else:
                await self._serve(wire, Door.TCP, None)

    async def refresh(self, slug: str) -> Ack | None:
        """Read a bottle's files again, with its sockets open while it exists. None when it is gone.

        Nothing is live before the operator's own gate, where there is one, knows of it too.
        """
        ack = await self._refresh(slug)
        return _and_also(await self._plane.write_pipelock(), ack)

    async def _refresh(self, slug: str) -> Ack | None:
        turn = self._refreshing.setdefault(slug, asyncio.Lock())
        async with turn:  # or one that began before it was removed would open its sockets again
            return await self._read_again(slug)

    async def _read_again(self, slug: str) -> Ack | None:
        if not exists(self._plane.config.bottles / slug):
            self._close(slug)
            self._plane.forget(slug)
            return None
        bottle, ack = await self._plane.load(slug)
        if not self._plane.stopping:
            try:
                await self._open(bottle)
            except OSError as error:
                bottle.problem = f"The bottle's sockets cannot be opened: {error}."
                log.error("bottle %s: %s", slug, bottle.problem)
                return bottle.ack()
        return ack

    async def refresh_all(self) -> list[Ack]:
        config = self._plane.config
        ours = (slug for slug in found_in(config.bottles) if config.owner(slug) == config.number)
        known = set(self._plane.bottles) | set(ours)
        acks = [await self._refresh(slug) for slug in sorted(known)]
        problem = (
            await self._plane.write_pipelock()
        )  # also without a bottle: an earlier run may have had some
        return [told for ack in acks if (told := _and_also(problem, ack)) is not None]

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
        for name, door in _SOCKETS.items():
            if door is Door.AGENT_SOCKET and not bottle.identity.supervise:
                self._close_one(bottle.slug, name)
            elif name not in servers:
                servers[name] = await self._listen(directory / name, door, bottle)

    async def _listen(self, path: Path, door: Door, bottle: Bottle) -> asyncio.Server:
        listening = bind_unix(path, mode=0o666)
        server = await self._loop.create_unix_server(
            lambda: self._wire(door, bottle), sock=listening, backlog=BACKLOG
        )
        try:
            self._plane.watch.registry.claim(listening.fileno())
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
        (self._plane.config.bottles / slug / SOCKETS / name).unlink(missing_ok=True)

    def _wire(self, door: Door, bottle: Bottle | None) -> Wire:
        return Wire(Doorbell(), self._plane.watch, lambda wire: self._begin(self._serve(wire, door, bottle)))

    def _begin(self, serving: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(serving)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, wire: Wire, door: Door, bottle: Bottle | None) -> None:
        self._plane.conversations.add(wire.bell)
        try:
            await Conversation(self._plane, wire, door, bottle).run()
        finally:
            self._plane.conversations.discard(wire.bell)


def _and_also(problem: str | None, ack: Ack | None) -> Ack | None:
    """What is wrong with the bottle's own files comes first."""
    return ack and replace(ack, problem=ack.problem or problem)
