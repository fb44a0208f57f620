"""The host process that runs a bottle's managed servers: one per bottle, and it ends with the bottle.

Web workers connect to its private socket and may restart meanwhile; its state is in `run/servers.json`. It
lives while it holds the lock on `run/servers.lock`.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from botbottle import backends
from botbottle.backends.base import Life, Unavailable
from botbottle.core import locks
from botbottle.core.plan_types import BackendError
from botbottle.manifest import reader as manifests
from botbottle.mcp_servers.clients import Client
from botbottle.mcp_servers.monitor import Phase, Sandbox, Server

SOCKET, LOCK, FILE = "servers.sock", "servers.lock", "servers.json"
WAIT_SECONDS = 60.0  # for the sandbox to start
LOOK_SECONDS = 2.0
LOCK_SECONDS = 1.0
MOST_LINE = 16 * 1024**2
MOST_CLIENTS = 512


@dataclass(frozen=True, slots=True)
class Order:
    """The order for a host process, sent on its standard input."""

    slug: str
    home: str
    manifest: str  # the manifest's text at the bottle's start
    path: str  # of that file: relative paths start there
    workspace: str  # on the host
    roots: tuple[str, ...]


class Host:
    def __init__(self, order: Order) -> None:
        self.order = order
        self.run_directory = Path(order.home) / "bottles" / order.slug / "run"
        self.manifest = manifests.parse(order.manifest, order.path, path=Path(order.path))
        self.backend = backends.get(self.manifest.backend, Path(order.home))
        self.servers: dict[str, Server] = {}
        self.attached: dict[str, Client] = {}  # the one websocket of each server
        self._conversations: set[asyncio.Task[None]] = set()
        self.started_at: float | None = None
        self._over = asyncio.Event()
        self._ended = ""  # why the bottle does not run

    async def live(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self._over.set)
        self.servers = {name: Server(spec, self._sandbox(), self.write) for name, spec in self._specs()}
        listener = listen(self.run_directory)
        serving = await asyncio.start_unix_server(self._serve, sock=listener, limit=MOST_LINE)
        try:
            await self._until_over()
        finally:
            serving.close()
            for conversation in self._conversations:
                conversation.cancel()
            await asyncio.gather(*(server.stop() for server in self.servers.values()), return_exceptions=True)
            (self.run_directory / SOCKET).unlink(missing_ok=True)
            for server in self.servers.values():
                if self._ended:
                    server.state.phase, server.state.problem = Phase.BOX_UNAVAILABLE, self._ended
            self.write()

    async def _until_over(self) -> None:
        if not await self._wait_for_sandbox():
            self._ended = f"The bottle {self.order.slug} does not run. Start it."
            return
        stopped = self._stopped_before()
        for name, server in self.servers.items():
            server.state.wanted = name not in stopped
            if server.state.wanted:
                server.begin()
            else:
                server.tried.set()
        while not self._over.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._over.wait()
            life = await self._life()
            if life is not None and (not life.alive or life.started_at != self.started_at):
                self._ended = "The bottle ended. Start it again."
                return

    async def _wait_for_sandbox(self) -> bool:
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                while not self._over.is_set():
                    life = await self._life()
                    if life is not None and life.alive:
                        self.started_at = life.started_at
                        return True
                    await asyncio.sleep(0.2)
        except (TimeoutError, Unavailable):
            pass
        return False

    async def _life(self) -> Life | None:
        """The bottle's state; None when the backend cannot tell, which does not mean that it ended."""
        try:
            return await asyncio.to_thread(self.backend.life, self.order.slug)
        except BackendError:
            return None

    def _specs(self) -> list[tuple[str, Any]]:
        return list(self.manifest.mcp_servers.items())

    def _sandbox(self) -> Sandbox:
        writable = self.manifest.workspace.writable
        places = [mount.source for mount in self.manifest.mounts if mount.writable]
        places += [self.order.workspace] if writable else []
        return Sandbox(
            self.backend,
            self.order.slug,
            self.order.workspace,
            writable,
            tuple(places),
            self.order.roots or (str(Path(self.order.path).parent),),
            self.run_directory,
        )

    # state on disk

    def write(self) -> None:
        known = {
            "pid": os.getpid(),
            "bottle_started_at": self.started_at,
            "servers": {name: asdict(server.state) for name, server in self.servers.items()},
        }
        temporary = self.run_directory / f".{FILE}.{os.getpid()}"
        with suppress(OSError):  # a full disk, or a bottle that was just deleted
            temporary.write_text(json.dumps(known), encoding="utf-8")
            temporary.replace(self.run_directory / FILE)

    def _stopped_before(self) -> set[str]:
        """The servers that an operator stopped. That holds until the bottle is started again."""
        try:
            known = json.loads((self.run_directory / FILE).read_bytes())
            if known["bottle_started_at"] != self.started_at or self.started_at is None:
                return set()
            return {name for name, state in known["servers"].items() if not state["wanted"]}
        except (OSError, ValueError, LookupError, TypeError):
            return set()

    # clients

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        conversation = asyncio.ensure_future(Client(self, reader, writer).converse())
        self._conversations.add(conversation)
        try:
            if len(self._conversations) <= MOST_CLIENTS:
                await asyncio.wait({conversation})
        finally:
            conversation.cancel()
            self._conversations.discard(conversation)
            writer.close()


def listen(run: Path) -> socket.socket:
    """Open the private socket. Its path may be longer than an address can be."""
    directory = os.open(run, os.O_PATH | os.O_DIRECTORY)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    path = f"/proc/self/fd/{directory}/{SOCKET}"
    mask = os.umask(0o177)
    try:
        Path(path).unlink(missing_ok=True)
        listener.bind(path)
        listener.listen(128)
        listener.setblocking(False)
    finally:
        os.umask(mask)
        os.close(directory)
    return listener


def lives(run: Path) -> bool:
    return locks.is_locked(run / LOCK)


def known(run: Path) -> dict[str, Any]:
    """The state of the servers that the last host process wrote, by name."""
    try:
        found: dict[str, Any] = json.loads((run / FILE).read_bytes())["servers"]
    except (OSError, ValueError, LookupError, TypeError):
        return {}
    return found


def main() -> None:
    plain = json.loads(sys.stdin.read())
    order = Order(**{**plain, "roots": tuple(plain["roots"])})
    run = Path(order.home) / "bottles" / order.slug / "run"
    run.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        locks.acquire(run / LOCK, seconds=LOCK_SECONDS)  # held until this process ends
    except BlockingIOError:
        return  # another host process has it
    log = os.open(run / "servers.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(log, 2)
    asyncio.run(Host(order).live())
