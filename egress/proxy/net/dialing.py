"""From a hostname to an open socket: resolve once, refuse forbidden addresses, dial exactly what was checked.

Trust boundary: DNS answers are hostile. Only hosts that a route allows get here.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from ipaddress import ip_address
from itertools import chain, zip_longest
from typing import Any
from weakref import WeakKeyDictionary

from egress.policy.addresses import Network, embedded, in_networks, is_forbidden_address
from egress.policy.routes import Route
from egress.proxy.errors import Refusal, Unreachable

Lookup = Callable[[str], Coroutine[Any, Any, Sequence[str]]]
_NEXT_ATTEMPT_AFTER = 0.25  # RFC 8305
_MAX_ADDRESSES = 8
MAX_LOOKUPS = 8  # of one bottle at once


async def system_lookup(host: str) -> list[str]:
    """The addresses of a host from the system's resolver. Raises OSError.

    In a thread of its own: the event loop's few would all wait for one slow name service.
    """
    loop = asyncio.get_running_loop()
    found: asyncio.Future[list[str]] = loop.create_future()

    def deliver(outcome: list[str] | OSError) -> None:
        if found.done():
            return
        if isinstance(outcome, OSError):
            found.set_exception(outcome)
        else:
            found.set_result(outcome)

    def ask() -> None:
        outcome = _resolve(host)
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(deliver, outcome)

    try:
        threading.Thread(target=ask, name="lookup", daemon=True).start()
    except RuntimeError as error:  # this account may have no more
        raise OSError("no thread can be started") from error
    return await found


def _resolve(host: str) -> list[str] | OSError:
    try:
        # The trailing dot keeps the resolver from trying the name inside the host's own search domains.
        found = socket.getaddrinfo(f"{host}.", None, type=socket.SOCK_STREAM)
    except OSError as error:
        return error
    except UnicodeError:
        return OSError(f"{host} is not a name that can be asked for")
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


class Resolver:
    """Lookups under way: one for each name, and a few for each bottle.

    A lookup cannot be stopped, so it counts until it ends.
    """

    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup
        self._under_way: dict[str, asyncio.Task[Sequence[str]]] = {}
        self._room: WeakKeyDictionary[object, asyncio.Semaphore] = WeakKeyDictionary()

    def lookup_for(self, whose: object) -> Lookup:
        room = self._room.setdefault(whose, asyncio.Semaphore(MAX_LOOKUPS))

        async def lookup(host: str) -> Sequence[str]:
            if host not in self._under_way:
                await room.acquire()
                if host in self._under_way:  # another task began it meanwhile
                    room.release()
                else:
                    self._begin(host, room)
            return await asyncio.shield(self._under_way[host])

        return lookup

    def _begin(self, host: str, room: asyncio.Semaphore) -> None:
        def end(task: asyncio.Task[Sequence[str]]) -> None:
            del self._under_way[host]
            room.release()
            if not task.cancelled():
                task.exception()  # those that still wait get it

        self._under_way[host] = task = asyncio.create_task(self._lookup(host))
        task.add_done_callback(end)


async def checked_addresses(
    host: str,
    route: Route,
    lookup: Lookup,
    *,
    seconds: float,
    forbidden: Sequence[Network] = (),
    nat64: bool = False,
) -> list[str]:
    """Where this host may be dialled. Raises Refusal. `forbidden` are the operator's own networks.

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
        why = is_forbidden_address(address, nat64=nat64) or _forbidden_here(address, forbidden)
        if why is not None:
            raise Refusal(
                "forbidden-address",
                f"The name {host} points to {why}. An operator can open it by pinning the route's addresses.",
            )
    return addresses


def _forbidden_here(address: str, forbidden: Sequence[Network]) -> str | None:
    if in_networks(address, forbidden):
        return "an address that the operator forbids"
    return "an address of this host" if is_own_address(str(embedded(address))) else None


def is_own_address(address: str) -> bool:
    """Whether this is an address of the host: the kernel would then use it as the source as well.

    No packet is sent and nothing is cached, so new addresses count at once.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 443))
        except OSError:  # no way to get there, not even over the loopback
            return False
        return ip_address(probe.getsockname()[0]) == ip_address(address)


async def dial(addresses: Sequence[str], port: int, *, seconds: float) -> socket.socket:
    """The first connection that opens, attempts staggered over both address families. Raises Unreachable."""
    try:
        async with asyncio.timeout(seconds):
            return await _first_to_open(_alternating(addresses)[:_MAX_ADDRESSES], port)
    except TimeoutError as error:
        raise Unreachable(
            "upstream-timeout", "The origin did not accept a connection in time.", 504
        ) from error
    except OSError as error:
        raise Unreachable("upstream-refused", "The origin refused the connection.") from error


async def _first_to_open(addresses: list[str], port: int) -> socket.socket:
    """Raises OSError when none opens."""
    if len(addresses) == 1:  # no race: no task is needed
        return await _connect(addresses[0], port)
    attempts: set[asyncio.Task[socket.socket]] = set()
    try:
        while addresses or attempts:
            if addresses:
                attempts.add(asyncio.create_task(_connect(addresses.pop(0), port)))
            done, attempts = await asyncio.wait(
                attempts,
                timeout=_NEXT_ATTEMPT_AFTER if addresses else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
            opened = [task.result() for task in done if task.exception() is None]
            for spare in opened[1:]:
                spare.close()
            if opened:
                return opened[0]
    finally:
        for task in attempts:
            task.add_done_callback(_discard)
            task.cancel()
    raise ConnectionRefusedError


def _alternating(addresses: Sequence[str]) -> list[str]:
    """IPv6 first, then families in turn."""
    v6 = [address for address in addresses if ":" in address]
    v4 = [address for address in addresses if ":" not in address]
    return [address for address in chain.from_iterable(zip_longest(v6, v4)) if address is not None]


async def _connect(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        await asyncio.get_running_loop().sock_connect(sock, (address, port))
    except BaseException:
        sock.close()
        raise
    return sock


def _discard(task: asyncio.Task[socket.socket]) -> None:
    if not task.cancelled() and task.exception() is None:
        task.result().close()
