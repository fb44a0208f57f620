from __future__ import annotations

import asyncio
import socket
import threading
from ipaddress import ip_network
from typing import Any

import pytest

from egress.policy.routes import Route
from egress.proxy.errors import Refusal, Unreachable
from egress.proxy.net import dialing
from egress.proxy.net.dialing import (
    MAX_LOOKUPS,
    Resolver,
    checked_addresses,
    dial,
    is_own_address,
    system_lookup,
)

PUBLIC = ["93.184.215.14", "2606:2800:21f:cb07::1"]


class Dialled:
    """Stands for the network: says which addresses answer, and remembers who was called."""

    def __init__(self, **behaviour: float | None) -> None:
        self.calls: list[str] = []
        self._behaviour = behaviour

    async def __call__(self, address: str, port: int) -> socket.socket:
        self.calls.append(address)
        delay = self._behaviour["v6" if ":" in address else "v4"]
        if delay is None:
            raise ConnectionRefusedError
        await asyncio.sleep(delay)
        return socket.socket()


async def lookup(_: str) -> list[str]:
    return PUBLIC


async def test_public_addresses_pass() -> None:
    assert await checked_addresses("a.example", Route("a.example"), lookup, seconds=1) == PUBLIC


async def test_a_pinned_route_asks_nobody() -> None:
    async def never(_: str) -> list[str]:
        raise AssertionError("the name service was asked")

    route = Route("a.example", pinned_addresses=("10.0.0.1",))
    assert await checked_addresses("a.example", route, never, seconds=1) == ["10.0.0.1"]


async def test_a_name_service_that_hangs_is_not_waited_for() -> None:
    async def hangs(_: str) -> list[str]:
        await asyncio.sleep(60)
        return PUBLIC

    with pytest.raises(Unreachable, match="could not be resolved"):
        await checked_addresses("a.example", Route("a.example"), hangs, seconds=0.01)


# --- addresses of our own


@pytest.mark.parametrize(
    ("address", "own"), [("127.0.0.1", True), ("::1", True), (PUBLIC[0], False), (PUBLIC[1], False)]
)
def test_the_kernel_knows_which_addresses_are_ours(address: str, own: bool) -> None:
    assert is_own_address(address) is own


@pytest.mark.parametrize("answer", [*PUBLIC, "64:ff9b::5db8:d70e"])
async def test_an_address_of_the_host_itself_is_refused(monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    async def found(_: str) -> list[str]:
        return ["93.184.215.99", answer]

    monkeypatch.setattr(dialing, "is_own_address", lambda address: address in PUBLIC)
    with pytest.raises(Refusal, match="an address of this host") as refusal:
        await checked_addresses("a.example", Route("a.example"), found, seconds=1, nat64=True)
    assert (refusal.value.reason, refusal.value.status) == ("forbidden-address", 403)


@pytest.mark.parametrize("network", ["93.184.215.14", "93.184.0.0/16", "2606:2800::/32"])
async def test_an_address_that_the_operator_forbids_is_refused(network: str) -> None:
    with pytest.raises(Refusal, match="an address that the operator forbids"):
        await checked_addresses(
            "a.example", Route("a.example"), lookup, seconds=1, forbidden=[ip_network(network)]
        )


# --- slow name services


class Slow:
    """A name service that answers for `slow` names only when it is told to."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answering = asyncio.Event()

    async def __call__(self, host: str) -> list[str]:
        self.asked.append(host)
        if host.startswith("slow"):
            await self.answering.wait()
        return PUBLIC


class Asker:
    """Stands for a bottle."""


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_slow_name_does_not_keep_others_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    answering = threading.Event()

    def getaddrinfo(host: str, *_: Any, **__: Any) -> list[Any]:
        if host.startswith("slow"):
            answering.wait(60)
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (PUBLIC[0], 0))]

    monkeypatch.setattr(dialing.socket, "getaddrinfo", getaddrinfo)
    waiting = [asyncio.create_task(system_lookup(f"slow{number}.example")) for number in range(64)]
    try:
        await settled()  # all of them are asked for before the quick one
        async with asyncio.timeout(30):
            assert await system_lookup("quick.example") == [PUBLIC[0]]
        assert not any(task.done() for task in waiting)
    finally:
        answering.set()
    assert await asyncio.gather(*waiting) == [[PUBLIC[0]]] * 64


async def test_a_name_that_does_not_exist_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def getaddrinfo(*_: Any, **__: Any) -> list[Any]:
        raise socket.gaierror("no such name")

    monkeypatch.setattr(dialing.socket, "getaddrinfo", getaddrinfo)
    with pytest.raises(OSError, match="no such name"):
        await system_lookup("none.example")


async def test_a_bottle_has_few_lookups_at_once_and_others_do_not_feel_it() -> None:
    service = Slow()
    names, greedy, modest = Resolver(service), Asker(), Asker()
    ask = names.lookup_for(greedy)
    waiting = [asyncio.create_task(ask(f"slow{number}.example")) for number in range(50)]
    await settled()
    assert len(service.asked) == MAX_LOOKUPS
    assert await names.lookup_for(modest)("quick.example") == PUBLIC
    for task in waiting:  # nobody waits any more, and they still count
        task.cancel()
    await settled()
    waiting = [asyncio.create_task(ask("slow.example"))]
    await settled()
    assert "slow.example" not in service.asked
    service.answering.set()
    assert await waiting[0] == PUBLIC


async def test_those_who_ask_for_the_same_name_share_one_lookup() -> None:
    service = Slow()
    names, bottles = Resolver(service), [Asker(), Asker()]
    waiting = [asyncio.create_task(names.lookup_for(bottles[n % 2])("slow.example")) for n in range(40)]
    await settled()
    service.answering.set()
    assert await asyncio.gather(*waiting) == [PUBLIC] * 40
    assert service.asked == ["slow.example"]


@pytest.mark.parametrize(
    ("behaviour", "called"),
    [
        ({"v6": 0.0, "v4": 0.0}, 1),
        ({"v6": None, "v4": 0.0}, 2),  # refused: the next at once
        ({"v6": 30.0, "v4": 0.0}, 2),  # silent: the next after a moment, and the first wins
    ],
)
async def test_it_tries_both_families_and_takes_the_first(
    monkeypatch: pytest.MonkeyPatch, behaviour: dict[str, float | None], called: int
) -> None:
    network = Dialled(**behaviour)
    monkeypatch.setattr(dialing, "_connect", network)
    monkeypatch.setattr(dialing, "_NEXT_ATTEMPT_AFTER", 0.01)
    (await dial(PUBLIC, 443, seconds=5)).close()
    assert network.calls == [PUBLIC[1], PUBLIC[0]][:called]


@pytest.mark.parametrize("addresses", [PUBLIC, PUBLIC[:1]], ids=["two", "one"])
async def test_only_what_was_checked_is_dialled(
    monkeypatch: pytest.MonkeyPatch, addresses: list[str]
) -> None:
    network = Dialled(v6=None, v4=None)
    monkeypatch.setattr(dialing, "_connect", network)
    with pytest.raises(Unreachable, match="refused"):
        await dial(addresses, 443, seconds=5)
    assert sorted(network.calls) == sorted(addresses)


@pytest.mark.parametrize("addresses", [PUBLIC, PUBLIC[:1]], ids=["two", "one"])
async def test_it_gives_up_in_time(monkeypatch: pytest.MonkeyPatch, addresses: list[str]) -> None:
    monkeypatch.setattr(dialing, "_connect", Dialled(v6=30.0, v4=30.0))
    with pytest.raises(Unreachable, match="in time"):
        await dial(addresses, 443, seconds=0.02)
