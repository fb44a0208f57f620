"""A managed stdio process in a bottle: its output as lines, its exit code, and its last output on stderr.

Trust boundary: every byte from it is the bottle's. Standard output carries protocol or is dropped.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
from collections.abc import Callable, Mapping
from typing import Any

from botbottle import inside
from botbottle.backends.base import Backend, NotRunning, Pipes
from botbottle.core.plan_types import BackendError, Limits
from botbottle.mcp_servers.staging import Launch

INSIDE = inside.DIRECTORY
BECOME, END, INSTALL, REMOVE = (
    (INSIDE / f"{name}.py").read_text(encoding="utf-8")
    for name in ("exec_as", "end_server", "python_workspace", "remove_trees")
)
MARK = "BOT_BOTTLE_SERVER"  # in the environment of every process of a server
READY = {"bot-bottle": "here"}
MOST_LINE = 16 * 1024**2
STDERR_BYTES = 4096
NOT_STARTED = (126, 127)
REMOVE_SECONDS = 60.0

Line = Callable[[dict[str, Any]], None]


class Gone(Exception):
    """The process accepts no more input."""


class StdioProcess:
    """Call `open`; read `exit_code` when `ended` is set. None means that the bottle itself ended."""

    def __init__(self, on_message: Line) -> None:
        self.on_message = on_message
        self.ready = asyncio.Event()
        self.ended = asyncio.Event()
        self.exit_code: int | None = None
        self.dropped = 0  # lines of standard output that were not protocol
        self.stderr = b""
        self.locate: Callable[[], int | None] = lambda: None
        self._stdin: asyncio.WriteTransport | None = None
        self._room = asyncio.Event()
        self._room.set()
        self._transports: list[asyncio.BaseTransport] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self, backend: Backend, slug: str) -> None:
        """Start a program that reports readiness and then waits for `become`. Raises BackendError."""
        await self._join(await asyncio.to_thread(backend.pipe, slug, BECOME))

    def become(self, launch: Launch, *, name: str, limits: Limits) -> None:
        """Start the server itself, each of its processes within the limits. Raises Gone."""
        env = {**launch.env, MARK: name}
        order = {"argv": launch.argv, "env": env, "path": launch.path, "cwd": launch.cwd, **_limits(limits)}
        text = json.dumps(order).encode()
        self.write(b"%08d" % len(text) + text)

    async def run(self, backend: Backend, slug: str, program: str, *arguments: str) -> None:
        """Run a program's text with its arguments, without protocol. Raises BackendError."""
        await self._join(await asyncio.to_thread(backend.pipe, slug, program, *arguments))
        self.close_input()

    async def _join(self, pipes: Pipes) -> None:
        loop = asyncio.get_running_loop()
        self.locate = pipes.locate
        for fd, act in (
            (pipes.stdout, self._read_lines),
            (pipes.stderr, self._read_stderr),
            (pipes.status, self._read_status),
        ):
            reader = asyncio.StreamReader(limit=MOST_LINE, loop=loop)
            protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
            file = os.fdopen(fd, "rb", buffering=0)
            joined, _ = await loop.connect_read_pipe(lambda protocol=protocol: protocol, file)  # type: ignore[misc]
            self._transports.append(joined)
            self._tasks.append(loop.create_task(act(reader)))
        transport, _ = await loop.connect_write_pipe(
            lambda: _Input(self._room), os.fdopen(pipes.stdin, "wb", buffering=0)
        )
        self._stdin = transport
        self._transports.append(transport)

    # input

    def write(self, data: bytes) -> None:
        """Raises Gone."""
        if self._stdin is None or self._stdin.is_closing() or self.ended.is_set():
            raise Gone
        self._stdin.write(data)

    async def send(self, message: Mapping[str, Any]) -> None:
        """Send one line; waits for room, so that the queue stays small. Raises Gone."""
        await self._room.wait()
        self.write(json.dumps(message, ensure_ascii=True, separators=(",", ":")).encode() + b"\n")

    def close_input(self) -> None:
        if self._stdin is not None:
            self._stdin.close()

    # output

    async def _read_lines(self, reader: asyncio.StreamReader) -> None:
        while True:
            try:
                line = await reader.readuntil(b"\n")
            except asyncio.IncompleteReadError:
                return
            except asyncio.LimitOverrunError as error:
                await reader.readexactly(max(1, error.consumed))
                self.dropped += 1
                continue
            self._handle_line(line)

    def _handle_line(self, line: bytes) -> None:
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            message = None
        if message == READY and not self.ready.is_set():
            self.ready.set()
        elif isinstance(message, dict) and message.get("jsonrpc") == "2.0" and self.ready.is_set():
            self.on_message(message)
        elif line.strip():
            self.dropped += 1

    async def _read_stderr(self, reader: asyncio.StreamReader) -> None:
        while chunk := await reader.read(4096):
            self.stderr = (self.stderr + chunk)[-STDERR_BYTES:]

    async def _read_status(self, reader: asyncio.StreamReader) -> None:
        said = await reader.read(16)
        self.exit_code = int(said) if said.isdigit() else None
        await asyncio.wait(self._tasks[:2], timeout=1.0)  # the last output; a child may keep the pipe open
        self.ended.set()
        self._room.set()

    def preview(self) -> str:
        """The last output, unchecked: escape it where it is shown."""
        return self.stderr.decode("utf-8", "replace")

    def close(self) -> None:
        for transport in self._transports:
            transport.close()
        for task in self._tasks:
            task.cancel()
        self.ended.set()


class _Input(asyncio.BaseProtocol):
    def __init__(self, room: asyncio.Event) -> None:
        self._room = room

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._room.set()


def _limits(limits: Limits) -> dict[str, int | None]:
    return {
        "data_bytes": limits.memory,
        "processes": limits.pids,
        "cpus": math.ceil(limits.cpus) if limits.cpus else None,
    }


async def end_all(backend: Backend, slug: str, name: str, *, seconds: float) -> None:
    """End every process of the server, whatever it forked. Raises BackendError."""
    process = StdioProcess(lambda _: None)
    await process.run(backend, slug, END, f"{MARK}={name}", str(seconds))
    try:
        async with asyncio.timeout(seconds + 10):
            await process.ended.wait()
    except TimeoutError:
        pass
    finally:
        process.close()


async def remove_trees(backend: Backend, slug: str, *paths: str) -> None:
    """Remove trees in the bottle, as its user. Raises BackendError, also when something is left."""
    process = StdioProcess(lambda _: None)
    await process.run(backend, slug, REMOVE, *paths)
    try:
        async with asyncio.timeout(REMOVE_SECONDS):
            await process.ended.wait()
    except TimeoutError:
        raise BackendError(f"{', '.join(paths)} could not be removed within {REMOVE_SECONDS:g} s.") from None
    finally:
        process.close()
    if process.exit_code is None:
        raise NotRunning("The bottle ended.")
    if process.exit_code:
        reason = " ".join(process.preview().split())[:300]
        raise BackendError(f"{', '.join(paths)} could not be removed: {reason}")
