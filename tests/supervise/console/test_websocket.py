"""The queue's websocket: who gets in, what it tells, and how it ends when a right is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.auth.models import Permission, User
from django.db import OperationalError
from django.test import Client

from botbottle.asgi import websocket_application
from botbottle.models import Bottle
from botbottle.web.websockets import UNAVAILABLE
from supervise import events
from supervise.console import websockets
from supervise.console.shared_reads import SharedAsyncRead
from supervise.console.websockets import FORBIDDEN
from supervise.proposals import decisions, queries
from tests.supervise.console.conftest import browser_of
from tests.support.proposals import ask, seen
from tests.support.sockets import Socket

pytestmark = pytest.mark.django_db(transaction=True)
HERE = "http://127.0.0.1:8000"


def socket_of(client: Client | None, *, origin: str = HERE) -> Socket:
    headers = [(b"host", b"127.0.0.1:8000"), (b"origin", origin.encode())]
    if client is not None:
        cookie = client.cookies[settings.SESSION_COOKIE_NAME].value
        headers.append((b"cookie", f"{settings.SESSION_COOKIE_NAME}={cookie}".encode()))
    return Socket(websocket_application, "/ws/queue/", headers)


@asynccontextmanager
async def open_socket(client: Client) -> AsyncIterator[Socket]:
    socket = socket_of(client)
    connected, _ = await socket.connect()
    assert connected
    try:
        yield socket
    finally:
        await socket.disconnect()


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rights are checked again at once instead of after half a minute."""
    monkeypatch.setattr("supervise.console.websockets.RECHECK_SECONDS", 0.01)


async def test_an_operator_and_a_viewer_get_in(olivia: Client, vera: Client) -> None:
    for client in (olivia, vera):
        async with open_socket(client):
            pass


async def test_the_unknown_are_refused(db: None) -> None:
    assert await socket_of(None).connect() == (False, FORBIDDEN)


@pytest.mark.parametrize(
    "lacking",
    [{"is_staff": False, "is_superuser": True}, {"is_staff": True}],
    ids=["not staff", "no permission"],
)
async def test_who_may_not_look_is_refused(lacking: dict[str, bool]) -> None:
    client = await sync_to_async(lambda: browser_of(User.objects.create_user("nils", **lacking)))()
    assert await socket_of(client).connect() == (False, FORBIDDEN)


@pytest.mark.parametrize("origin", ["http://evil.example.com", "http://127.0.0.1.evil.example.com", "null"])
async def test_another_site_is_refused_even_with_the_cookie(olivia: Client, origin: str) -> None:
    connected, _ = await socket_of(olivia, origin=origin).connect()
    assert not connected


async def test_it_tells_that_something_happened_by_numbers_only(
    olivia: Client, operator: User, agent_a: Bottle
) -> None:
    async with open_socket(olivia) as socket:
        proposal = await sync_to_async(ask)(agent_a, why="secret words")
        filed: dict[str, Any] = await socket.receive_json_from()
        assert filed == {
            "type": "proposals",
            "counts": {"pending": 1, "high": 0, "waiting": 1, "snoozed": 0, "running": 0},
        }
        digest = await sync_to_async(seen)(proposal)
        await sync_to_async(decisions.approve)(proposal.pk, actor=operator, seen_digest=digest, note="hush")
        told = await socket.receive_json_from()
        assert told["counts"]["pending"] == 0
        assert "hush" not in str(told) and "secret" not in str(filed)


@pytest.fixture
def pause_over(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """The pause between two messages ends when the test says."""
    over = asyncio.Event()
    monkeypatch.setattr(websockets, "_pause", over.wait)
    return over


async def test_a_burst_is_one_message_and_it_is_right(
    olivia: Client, agent_a: Bottle, pause_over: asyncio.Event
) -> None:
    def burst() -> None:
        for number in range(40):
            ask(agent_a, f"h{number}.example.com")

    async with open_socket(olivia) as socket:
        await sync_to_async(ask)(agent_a)
        assert (await socket.receive_json_from())["counts"]["pending"] == 1
        await sync_to_async(burst)()
        assert await socket.receive_nothing(timeout=0.01)
        pause_over.set()
        assert (await socket.receive_json_from())["counts"]["pending"] == 41


async def test_one_event_is_counted_once_for_all_open_pages(
    olivia: Client, agent_a: Bottle, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[dict[str, int]] = []
    monkeypatch.setattr(
        websockets, "COUNTS", SharedAsyncRead(lambda: counted.append(queries.counts()) or counted[-1])
    )
    async with AsyncExitStack() as stack:
        sockets = [await stack.enter_async_context(open_socket(olivia)) for _ in range(20)]
        await sync_to_async(ask)(agent_a)
        told = [await socket.receive_json_from() for socket in sockets]
    assert [message["counts"]["pending"] for message in told] == [1] * 20
    assert len(counted) <= 2  # those who hear of it after the first read began share a second one


async def test_a_page_whose_counts_cannot_be_read_is_closed_so_that_it_connects_again(
    olivia: Client, agent_a: Bottle, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> dict[str, int]:
        raise OperationalError("the database restarts")

    monkeypatch.setattr(websockets, "COUNTS", SharedAsyncRead(fail))
    async with open_socket(olivia) as socket:
        await sync_to_async(ask)(agent_a)
        closed = await socket.receive_output()
        assert (closed["type"], closed["code"]) == ("websocket.close", UNAVAILABLE)


async def test_it_tells_that_a_bottle_changed(olivia: Client, agent_a: Bottle) -> None:
    async with open_socket(olivia) as socket:
        await sync_to_async(events.announce_bottle)(agent_a, "running")
        assert await socket.receive_json_from() == {"type": "bottle", "id": agent_a.pk}


async def test_it_tells_that_something_was_refused_however_much_was_in_one_message(
    olivia: Client, pause_over: asyncio.Event
) -> None:
    async with open_socket(olivia) as socket:
        await sync_to_async(events.announce_refusals)()
        assert await socket.receive_json_from() == {"type": "refused"}
        for _ in range(50):
            await sync_to_async(events.announce_refusals)()
        assert await socket.receive_nothing(timeout=0.01)
        pause_over.set()
        assert await socket.receive_json_from() == {"type": "refused"}


async def test_it_ignores_what_the_page_sends(olivia: Client, agent_a: Bottle) -> None:
    async with open_socket(olivia) as socket:
        await socket.send_to(text_data="{not json")
        await socket.send_to(text_data='{"type": "proposal.event", "id": "x", "kind": "approve"}')
        await socket.send_to(bytes_data=b"\xff")
        await sync_to_async(ask)(agent_a)
        assert (await socket.receive_json_from())["type"] == "proposals"


def lose_permission(user: User) -> None:
    user.user_permissions.clear()


def lose_staff(user: User) -> None:
    User.objects.filter(pk=user.pk).update(is_staff=False)


def be_deactivated(user: User) -> None:
    User.objects.filter(pk=user.pk).update(is_active=False)


def change_password(user: User) -> None:
    user.set_password("another-horse-battery")
    user.save()


@pytest.mark.parametrize("lose", [lose_permission, lose_staff, be_deactivated, change_password])
async def test_who_loses_the_right_loses_the_socket(
    olivia: Client, operator: User, often: None, lose: Any
) -> None:
    async with open_socket(olivia) as socket:
        assert await socket.receive_nothing(timeout=0.1)
        await sync_to_async(lose)(operator)
        closed = await socket.receive_output()
        assert (closed["type"], closed["code"]) == ("websocket.close", FORBIDDEN)


async def test_who_cannot_be_asked_about_loses_the_socket(
    olivia: Client, often: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: str) -> bool:
        raise OperationalError("the database restarts")

    async with open_socket(olivia) as socket:
        monkeypatch.setattr("supervise.console.websockets._session_may_watch", fail)
        assert (await socket.receive_output())["code"] == FORBIDDEN


async def test_signing_out_closes_the_socket(olivia: Client, often: None) -> None:
    async with open_socket(olivia) as socket:
        await sync_to_async(olivia.logout)()
        assert (await socket.receive_output())["code"] == FORBIDDEN


async def test_a_right_that_stays_keeps_the_socket(
    olivia: Client, operator: User, often: None, agent_a: Bottle
) -> None:
    def keep_only_view() -> None:
        operator.user_permissions.set([Permission.objects.get(codename="view_proposal")])

    async with open_socket(olivia) as socket:
        await sync_to_async(keep_only_view)()
        assert await socket.receive_nothing(timeout=0.2)
        await sync_to_async(ask)(agent_a)
        assert (await socket.receive_json_from())["type"] == "proposals"


async def test_nothing_is_left_running_after_it_closes(olivia: Client, often: None) -> None:
    before = len(asyncio.all_tasks())
    async with open_socket(olivia):
        assert len(asyncio.all_tasks()) > before
    await asyncio.sleep(0)
    assert len(asyncio.all_tasks()) == before
