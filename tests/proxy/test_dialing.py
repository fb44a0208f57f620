from __future__ import annotations

import asyncio
import socket

import pytest

from egress.proxy import dialing
from egress.proxy.dialing import checked_addresses, dial
from egress.proxy.errors import Unreachable
from egress.routes import Route

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


async def test_only_what_was_checked_is_dialled(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Dialled(v6=None, v4=None)
    monkeypatch.setattr(dialing, "_connect", network)
    with pytest.raises(Unreachable, match="refused"):
        await dial(PUBLIC, 443, seconds=5)
    assert sorted(network.calls) == sorted(PUBLIC)


async def test_it_gives_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialing, "_connect", Dialled(v6=30.0, v4=30.0))
    with pytest.raises(Unreachable, match="in time"):
        await dial(PUBLIC, 443, seconds=0.02)
