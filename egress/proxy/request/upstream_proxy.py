"""The operator's own proxy (such as pipelock): all traffic but that to pinned addresses leaves through it.

Trust boundary: the operator chose it, and it resolves names and refuses addresses in our place. What it says
about a refusal is shown to the agent, shortened and printable.
"""

from __future__ import annotations

import asyncio
import re
import socket
from typing import Any

from egress.policy.decide import is_askable
from egress.proxy.config import Gateway
from egress.proxy.errors import Refusal, Unreachable
from egress.proxy.http.heads import parse_response
from egress.proxy.net.dialing import dial

_MAX_ANSWER = 16 * 1024
_MAX_SHOWN = 200


async def reach(gateway: Gateway, *, seconds: float) -> socket.socket:
    """An open connection to the proxy itself. Raises Unreachable."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(seconds):
            found = await loop.getaddrinfo(gateway.host, gateway.port, type=socket.SOCK_STREAM)
        return await dial([str(address[0]) for *_, address in found], gateway.port, seconds=seconds)
    except (OSError, TimeoutError, Unreachable) as error:
        raise Unreachable("gate-down", "The gate's proxy is not reachable. Tell the operator.") from error


async def connect_through(gateway: Gateway, host: str, port: int, *, seconds: float) -> socket.socket:
    """A connection through the proxy to `host`. Raises Unreachable, or Refusal with the proxy's reason."""
    sock = await reach(gateway, seconds=seconds)
    try:
        async with asyncio.timeout(seconds):
            head, rest = await _ask(sock, f"{host}:{port}")
            answer = parse_response(head, max_fields=100, to_head=False)
            if answer.status != 200:
                rest = rest or await asyncio.get_running_loop().sock_recv(sock, _MAX_SHOWN)
                raise _refused(host, answer.status, rest)
        if rest:
            raise Unreachable("gate-down", "The gate's proxy sent data before it was asked.")
    except (OSError, TimeoutError) as error:
        sock.close()
        raise Unreachable("gate-down", "The gate's proxy did not answer. Tell the operator.") from error
    except BaseException:
        sock.close()
        raise
    return sock


async def _ask(sock: socket.socket, authority: str) -> tuple[bytes, bytes]:
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(
        sock, f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n".encode("ascii")
    )
    received = b""
    while b"\r\n\r\n" not in received:
        data = await loop.sock_recv(sock, 4096)
        received += data
        if not data or len(received) > _MAX_ANSWER:
            raise OSError("no answer to CONNECT")
    head, separator, rest = received.partition(b"\r\n\r\n")
    return head + separator, rest


def _refused(host: str, status: int, body: bytes) -> Refusal:
    shown = re.sub(r"[^\x21-\x7e]+", " ", body[:_MAX_SHOWN].decode("latin-1")).strip()
    if status != 403:
        return Unreachable("gate-down", f"The gate's proxy answered {status} for {host}. Tell the operator.")
    ask: dict[str, Any] | None = None
    if "allowlist" in shown.lower() and is_askable(host):
        url = f"https://{host}/"
        why = f"CONNECT {host} was refused by the gate."
        ask = {"tool": "pipelock-block", "arguments": {"failed_url": url, "justification": why}}
    return Refusal("gate", f"The gate's proxy refused {host}: {shown or 'no reason given'}", 403, ask=ask)
