"""Thousands of tool calls that wait on one server, each over a connection of its own.

Run as a program it measures a stop: `python -m tests.support.waiting_calls 10000`, and with `manage.py` as
second argument the calls are really filed, which takes minutes.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.server import RunningServer, running_server, stop
from tests.support.timeouts import PATIENCE

AT_ONCE = 32  # calls that are being filed
WITHOUT_FILING = "tests/support/programs/web_without_filing.py"
HELD = {
    "SUPERVISE_RESPONSE_TIMEOUT_SECONDS": "3600",
    "SUPERVISE_MAX_WAITING": "1000000",
    "SUPERVISE_MAX_PENDING": "100000",
    "SUPERVISE_MAX_PER_MINUTE": "1000000",
}


@dataclass
class WaitingCalls:
    """All of them ask for the same: the server joins them to one proposal, and each waits by itself."""

    server: RunningServer
    token: str
    _connections: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = field(default_factory=list)

    async def grow(self, count: int) -> None:
        """Return when so many more have the beginning of their answer."""
        turn = asyncio.Semaphore(AT_ONCE)
        await asyncio.gather(*(self._begin(turn) for _ in range(count)))

    async def answers(self) -> Counter[str]:
        """How many were answered with which status, or with nothing. Returns when the server has hung up."""
        return Counter(await asyncio.gather(*(self._end(*each) for each in self._connections)))

    async def _begin(self, turn: asyncio.Semaphore) -> None:
        async with turn:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.server.agent_port)
            writer.write(self._request())
            await reader.readuntil(b"\r\n\r\n")
            await reader.readuntil(b"1\r\n \r\n")  # the first sign of life: it is filed
            self._connections.append((reader, writer))

    async def _end(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
        try:
            async with asyncio.timeout(PATIENCE):
                answer = await reader.read()
        except OSError:
            answer = b""
        writer.close()
        _, _, told = answer.partition(b"status: ")
        return told.split(b"\\n")[0].decode() or "nothing"

    def _request(self) -> bytes:
        arguments = {"host": "api.example.com", "justification": "tests need it"}
        call = {
            "jsonrpc": "2.0", "id": 1, "method": "tools/call",
            "params": {"name": "egress-block", "arguments": arguments},
        }  # fmt: skip
        body = json.dumps(call).encode()
        head = (
            f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {self.token}\r\n"
            "Accept: application/json\r\nContent-Type: application/json\r\n"
            f"MCP-Protocol-Version: 2025-11-25\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body


def raise_file_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def measure(count: int, program: str = WITHOUT_FILING) -> None:
    raise_file_limit()
    with (
        tempfile.TemporaryDirectory(prefix="bottle-calls-") as home,
        running_server(Path(home), "web", program=program, **HELD) as server,
    ):
        calls = WaitingCalls(server, server.create_bottle("held")["token"])
        begun = time.monotonic()
        await calls.grow(count)
        sys.stdout.write(f"{count} calls wait after {time.monotonic() - begun:.1f} s\n")
        begun = time.monotonic()
        answers = asyncio.create_task(calls.answers())
        await asyncio.to_thread(stop, server.process, PATIENCE)
        seconds, code = time.monotonic() - begun, server.process.returncode
        sys.stdout.write(f"ended with code {code} after {seconds:.2f} s: {dict(await answers)}\n")
        sys.stdout.write("".join(line for line in server.log().splitlines(True) if not line.startswith("{")))


if __name__ == "__main__":
    asyncio.run(measure(int(sys.argv[1]), *sys.argv[2:]))
