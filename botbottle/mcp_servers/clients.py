"""A client of a managed server: a web worker connected to the host process, for one call or a websocket.

Lines of JSON in both directions. The worker has authenticated the bottle and checked the message.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import TYPE_CHECKING, Any

from botbottle.mcp_servers.monitor import Condition, Phase, Server, error_of
from botbottle.mcp_servers.process import Gone

if TYPE_CHECKING:
    from botbottle.mcp_servers.host import Host

MOST_BEHIND = 64 * 1024**2  # of unread data for a client
_numbers = itertools.count(1)  # 0 is the host process itself

Json = dict[str, Any]


class Client:
    def __init__(self, host: Host, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.host, self.reader, self.writer = host, reader, writer
        self.number = next(_numbers)
        self.server: Server | None = None

    async def converse(self) -> None:
        try:
            await self._converse()
        except (OSError, ValueError, asyncio.IncompleteReadError):
            pass  # the client is gone, or is not one of our workers
        finally:
            self.leave()

    async def _converse(self) -> None:
        """Read {server, attach} or {control, server} first; then messages."""
        first = await self._next()
        server = self.host.servers.get(str(first.get("server"))) if first else None
        if first is None or server is None:
            self.send({"refused": error_of(Phase.SESSION_CREATE, "This bottle has no such server.")})
            return
        if "control" in first:
            await self._control(server, str(first["control"]))
            return
        refused = await self._wait_for(server)
        if refused is None and first.get("attach"):
            refused = self._attach(server)
        self.send({"refused": refused} if refused else {"ok": True})
        if refused is None:
            self.server = server
            await self._relay(server)

    async def _relay(self, server: Server) -> None:
        while (message := await self._next()) is not None:
            session = server.session
            try:
                if session is None or server.state.condition is not Condition.RUNNING:
                    raise Gone
                if self.host.attached.get(server.spec.name) is self:
                    session.listen(self.number, self.send)
                await session.forward(self.number, message, self.send)
            except Gone:
                if "id" in message:
                    problem = await self._wait_for(server) or error_of(
                        Phase.TOOL_CALL, "The server was restarted just now. Call again."
                    )
                    self.send({"jsonrpc": "2.0", "id": message["id"], "error": problem})

    async def _wait_for(self, server: Server) -> Json | None:
        """Wait until the server runs or has failed once; returns the problem, or None."""
        seconds = server.spec.startup_timeout
        try:
            async with asyncio.timeout(seconds):
                await server.tried.wait()
        except TimeoutError:
            return error_of(server.step, f"It is not up after {seconds:g} s.")
        state = server.state
        if state.condition is Condition.RUNNING:
            return None
        name = server.spec.name
        if not state.wanted:
            return error_of(Phase.RUNTIME, f"An operator stopped the server {name}.")
        again = "" if server.is_over else " It is tried again by itself: call again in a moment."
        return error_of(
            state.phase or Phase.RUNTIME, f"The server {name} does not run. {state.problem}{again}"
        )

    def _attach(self, server: Server) -> Json | None:
        """Attach one client at a time: two would answer each other's questions."""
        if server.spec.name in self.host.attached:
            return error_of(Phase.RELAY_CONNECT, "Another websocket is attached to this server.")
        self.host.attached[server.spec.name] = self
        return None

    async def _control(self, server: Server, verb: str) -> None:
        server.state.wanted = verb != "stop"
        if verb in ("stop", "restart"):
            server.state.phase = server.state.problem = ""
            await server.stop()
        if verb in ("start", "restart"):
            server.begin()
        self.send({"ok": verb in ("stop", "start", "restart")})

    async def _next(self) -> Json | None:
        line = await self.reader.readline()
        if not line:
            return None
        message = json.loads(line)
        if not isinstance(message, dict):
            raise ValueError("not a message")
        return message

    def send(self, message: Json) -> None:
        if self.writer.transport.get_write_buffer_size() > MOST_BEHIND:
            self.writer.transport.abort()
            return
        self.writer.write(json.dumps(message, ensure_ascii=True, separators=(",", ":")).encode() + b"\n")

    def leave(self) -> None:
        if self.server is not None:
            if self.server.session is not None:
                self.server.session.leave(self.number)
            if self.host.attached.get(self.server.spec.name) is self:
                del self.host.attached[self.server.spec.name]
