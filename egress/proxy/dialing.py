"""From a hostname to an open socket: resolve once, refuse forbidden addresses, dial exactly what was checked.

Trust boundary: DNS answers are hostile. Only hosts that a route allows get here.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from itertools import chain, zip_longest

from egress.addresses import is_forbidden_address
from egress.routes import Route

from .errors import Unreachable

Lookup = Callable[[str], Awaitable[Sequence[str]]]
_NEXT_ATTEMPT_AFTER = 0.25  # RFC 8305
_MAX_ADDRESSES = 8


async def system_lookup(host: str) -> list[str]:
    """The addresses of a host from the system's resolver. Raises OSError."""
    loop = asyncio.get_running_loop()
    # The trailing dot keeps the resolver from trying the name inside the host's own search domains.
    found = await loop.getaddrinfo(f"{host}.", None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


async def checked_addresses(host: str, route: Route, lookup: Lookup, *, seconds: float) -> list[str]:
    """Where this host may be dialled. Raises Unreachable.

    One forbidden address among several refuses them all: no honest zone mixes public and private answers, and
    picking the harmless one would help an attacker to probe.
    """
    if route.pinned_addresses:
        return list(route.pinned_addresses)
    try:
        async with asyncio.timeout(seconds):
            addresses = list(await lookup(host))
    except (OSError, TimeoutError) as error:
        raise Unreachable("unresolvable", f"The name {host} could not be resolved.") from error
    if not addresses:
        raise Unreachable("unresolvable", f"The name {host} has no address.")
    for address in addresses:
        why = is_forbidden_address(address)
        if why is not None:
            raise Unreachable(
                "forbidden-address",
                f"The name {host} points to {why}. An operator can open it by pinning the route's addresses.",
                403,
            )
    return addresses


async def dial(addresses: Sequence[str], port: int, *, seconds: float) -> socket.socket:
    """The first connection that opens, attempts staggered over both address families. Raises Unreachable."""
    attempts: set[asyncio.Task[socket.socket]] = set()
    waiting = _alternating(addresses)[:_MAX_ADDRESSES]
    try:
        async with asyncio.timeout(seconds):
            while waiting or attempts:
                if waiting:
                    attempts.add(asyncio.create_task(_connect(waiting.pop(0), port)))
                done, attempts = await asyncio.wait(
                    attempts,
                    timeout=_NEXT_ATTEMPT_AFTER if waiting else None,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                opened = [task.result() for task in done if task.exception() is None]
                for spare in opened[1:]:
                    spare.close()
                if opened:
                    return opened[0]
    except TimeoutError as error:
        raise Unreachable(
            "upstream-timeout", "The origin did not accept a connection in time.", 504
        ) from error
    finally:
        for task in attempts:
            task.add_done_callback(_discard)
            task.cancel()
    raise Unreachable("upstream-refused", "The origin refused the connection.")


def _alternating(addresses: Sequence[str]) -> list[str]:
    """IPv6 first, then families in turn."""
    v6 = [address for address in addresses if ":" in address]
    v4 = [address for address in addresses if ":" not in address]
    return [address for address in chain.from_iterable(zip_longest(v6, v4)) if address is not None]


async def _connect(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    connection = socket.socket(family, socket.SOCK_STREAM)
    try:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        await asyncio.get_running_loop().sock_connect(connection, (address, port))
    except BaseException:
        connection.close()
        raise
    return connection


def _discard(task: asyncio.Task[socket.socket]) -> None:
    if not task.cancelled() and task.exception() is None:
        task.result().close()
