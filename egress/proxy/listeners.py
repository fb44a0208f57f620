"""The sockets bottles connect to: two of its own for each, and one TCP port for those that come with a token.

Trust boundary: which socket a connection came in on is who it is. Sockets live in the bottle's own directory.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from pathlib import Path

from botbottle.environment import BadSetting

from .bottles import Ack, Bottle, exists, found_in
from .conversation import Conversation, Door
from .plane import DataPlane
from .wire import Doorbell, Wire

log = logging.getLogger(__name__)
_BACKLOG = 1024
SOCKETS = "sockets"  # a directory of their own: mounted into the bottle, so that new sockets appear there too
_SOCKETS = {"proxy.sock": Door.PROXY_SOCKET, "agent.sock": Door.AGENT_SOCKET}


class Listeners:
    """Opens and closes sockets as bottles come and go."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane
        self._servers: dict[str, dict[str, asyncio.Server]] = {}  # by bottle and by name
        self._tcp: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.port: int | None = None

    async def open_tcp(self, bind: str, port: int) -> None:
        """Raises BadSetting."""
        loop = asyncio.get_running_loop()
        try:
            self._tcp = await loop.create_server(
                lambda: self._wire(Door.TCP, None), bind, port, backlog=_BACKLOG
            )
        except OSError as error:
            # The event loop's own words say the address twice.
            why = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
            raise BadSetting(
                f"Cannot listen on {bind}:{port} ({why}). Stop what uses it, or set EGRESS_PORT."
            ) from error
        self.port = int(self._tcp.sockets[0].getsockname()[1])

    async def refresh(self, slug: str) -> Ack | None:
        """Read a bottle's files again, with its sockets open while it exists. None when it is gone."""
        if not exists(self._plane.config.bottles / slug):
            self._close(slug)
            self._plane.forget(slug)
            self._plane.write_pipelock()
            return None
        bottle, ack = await self._plane.load(slug)
        self._plane.write_pipelock()
        if not self._plane.stopping:
            try:
                await self._open(bottle)
            except OSError as error:
                bottle.problem = f"The bottle's sockets cannot be opened: {error}."
                log.error("bottle %s: %s", slug, bottle.problem)
                return bottle.ack()
        return ack

    async def refresh_all(self) -> list[Ack]:
        known = set(self._plane.bottles) | set(found_in(self._plane.config.bottles))
        acks = [await self.refresh(slug) for slug in sorted(known)]
        return [ack for ack in acks if ack is not None]

    def close(self) -> None:
        """Take no more connections; those that are open go on."""
        if self._tcp is not None:
            self._tcp.close()
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
        return await asyncio.get_running_loop().create_unix_server(
            lambda: self._wire(door, bottle), sock=listening, backlog=_BACKLOG
        )

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
        bell = Doorbell()

        def opened(wire: Wire) -> None:
            task = asyncio.get_running_loop().create_task(self._serve(wire, door, bottle))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        return Wire(bell, self._plane.watch, opened)

    async def _serve(self, wire: Wire, door: Door, bottle: Bottle | None) -> None:
        with self._plane.conversing(wire.bell):
            await Conversation(self._plane, wire, door, bottle).run()


def bind_unix(path: Path, *, mode: int) -> socket.socket:
    """A socket bound to `path`, however long: the kernel limits only the name it is given. Raises OSError.

    The sockets of a bottle are open to every user id because they are mounted into it; on the host, their
    directory is closed to all but the owner.
    """
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.unlink(missing_ok=True)
        listening.bind(f"/proc/self/fd/{directory}/{path.name}")
        path.chmod(mode)
        listening.setblocking(False)
    except OSError:
        listening.close()
        raise
    finally:
        os.close(directory)
    return listening
