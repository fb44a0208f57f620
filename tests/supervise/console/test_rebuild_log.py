"""The log's websocket: from where the page has it, in order, one part at a time, as harmless text."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from botbottle.asgi import websocket_application
from botbottle.models import Bottle
from egress.models import TrafficRecord
from supervise.bottles import build_log, images
from supervise.bottles.build_log import Log
from supervise.console import websockets
from supervise.console.websockets import FORBIDDEN
from supervise.models import Rebuild
from supervise.proposals import decisions
from tests.support.proposals import HOSTILE, ask_image, seen
from tests.support.sockets import Socket

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def rebuild(agent_a: Bottle, operator: User) -> Rebuild:
    proposal = ask_image(agent_a)
    decision = decisions.approve(proposal.pk, actor=operator, seen_digest=seen(proposal))
    made = Rebuild.objects.create(bottle=agent_a, decision=decision, author="olivia", digest="0" * 64)
    images.enter(made, "building", build_started_at=timezone.now())
    return made


@pytest.fixture
def log(rebuild: Rebuild) -> Iterator[Log]:
    made = Log(images.log_path(rebuild))
    yield made
    made.close()


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websockets, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(websockets, "PROGRESS_SECONDS", 0.01)
    monkeypatch.setattr(websockets, "LINGER_SECONDS", 0.2)


@asynccontextmanager
async def open_socket(client: Client) -> AsyncIterator[Socket]:
    cookie = f"{settings.SESSION_COOKIE_NAME}={client.cookies[settings.SESSION_COOKIE_NAME].value}"
    headers = [
        (b"host", b"127.0.0.1:8000"),
        (b"origin", b"http://127.0.0.1:8000"),
        (b"cookie", cookie.encode()),
    ]
    socket = Socket(websocket_application, "/ws/rebuild-log/", headers)
    assert (await socket.connect())[0]
    try:
        yield socket
    finally:
        await socket.disconnect()


def page_of(client: Client, rebuild: Rebuild) -> dict[str, Any]:
    """What the server made of it for a page: its log and where that ends."""
    assert rebuild.decision is not None
    text = client.get(f"/proposals/{rebuild.decision.proposal_id}/").content.decode()
    (log,) = re.findall(r'<pre class="hostile log"[^>]*><bdi>(.*?)</bdi>', text, re.DOTALL)
    facts = {
        name: re.findall(rf'data-{name}="([^"]*)"', text)[0] for name in ("rebuild", "offset", "progress")
    }
    return {
        "log": log,
        "asks": {**facts, "rebuild": int(facts["rebuild"]), "offset": int(facts["offset"])},
        "runs": "data-running" in text,
    }


async def test_what_is_written_after_the_page_was_made_comes_in_order_and_once(
    vera: Client, rebuild: Rebuild, log: Log
) -> None:
    for number in range(20):
        log(f"line {number}")
    shown = await sync_to_async(page_of)(vera, rebuild)
    assert shown["runs"] and shown["log"] == "".join(f"line {number}\n" for number in range(20))
    log("between the page and the socket")
    async with open_socket(vera) as socket:
        await socket.send_json_to(shown["asks"])
        first = await socket.receive_json_from()
        assert (first["after"], first["text"]) == (
            shown["asks"]["offset"],
            "between the page and the socket\n",
        )
        log("one")
        log("two")
        assert await socket.receive_nothing(timeout=0.1), "nothing more is sent than the page has room for"
        await socket.send_json_to({**shown["asks"], "offset": first["offset"]})
        second = await socket.receive_json_from()
        assert (second["after"], second["text"]) == (first["offset"], "one\ntwo\n")
    async with open_socket(vera) as socket:
        await socket.send_json_to({**shown["asks"], "offset": first["offset"]})
        assert await socket.receive_json_from() == second, "a new connection goes on where it was"


async def test_a_long_log_comes_in_parts_of_whole_lines(
    vera: Client, rebuild: Rebuild, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websockets, "PART", 1000)
    lines = [f"{number} é" * (number % 30) for number in range(300)]
    for line in lines:
        log(line)
    asks = {"rebuild": rebuild.pk, "offset": 0, "progress": "building-0"}
    parts: list[str] = []
    async with open_socket(vera) as socket:
        while sum(map(len, parts)) < sum(len(line) + 1 for line in lines):
            await socket.send_json_to(asks)
            part = await socket.receive_json_from()
            assert part["text"].endswith("\n") and len(part["text"].encode()) <= 1000
            parts.append(part["text"])
            asks["offset"] = part["offset"]
    assert "".join(parts) == "".join(f"{line}\n" for line in lines)


async def test_what_the_build_says_is_only_ever_text(vera: Client, rebuild: Rebuild, log: Log) -> None:
    log(HOSTILE)
    async with open_socket(vera) as socket:
        await socket.send_json_to({"rebuild": rebuild.pk, "offset": 0, "progress": "building-0"})
        text = (await socket.receive_json_from())["text"]
    assert "<script>" in text, "the page puts it in place as text"
    for character in ("\x1b", "\u202e", "\u200b", "\x07", "\x00", "\u2028"):
        assert character not in text
        assert f"U+{ord(character):04X}" in text or character == "\x00"
    shown = await sync_to_async(page_of)(vera, rebuild)
    assert "&lt;script&gt;" in shown["log"] and "<script>" not in shown["log"]


async def test_it_tells_that_the_panel_is_out_of_date_and_ends_after_the_end(
    vera: Client, rebuild: Rebuild, log: Log
) -> None:
    asks = (await sync_to_async(page_of)(vera, rebuild))["asks"]
    async with open_socket(vera) as socket:
        await socket.send_json_to(asks)
        assert await socket.receive_nothing(timeout=0.1)
        await sync_to_async(refuse)(rebuild)
        assert (await socket.receive_json_from())["progress"] == "building-1"
        await sync_to_async(images.enter)(rebuild, "failed", problem="no", ended_at=timezone.now())
        told = await socket.receive_json_from()
        assert told == {"type": "progress", "progress": "failed-1"}
        assert (await sync_to_async(page_of)(vera, rebuild))["asks"]["progress"] == "failed-1"
        log("the last word")
        assert (await socket.receive_json_from())["text"] == "the last word\n"
        assert await socket.receive_nothing(timeout=0.4), "it waits until the page has it"
        await socket.send_json_to({**asks, "offset": 14, "progress": "failed-1"})
        assert (await socket.receive_output())["code"] == websockets.DONE


def refuse(rebuild: Rebuild) -> None:
    TrafficRecord.objects.create(
        bottle=rebuild.bottle, at=timezone.now(), method="CONNECT", scheme="https", host="index.example",
        path="", table_version=1, verdict="refused", reason="no_route", status=403, bytes_out=0, bytes_in=0,
        duration_ms=1, ask={"host": "index.example"},
    )  # fmt: skip


@pytest.mark.parametrize(
    "said",
    [
        " ", "{", "[]", "null", '"x"', "{}", '{"rebuild": 1}', "9" * 301,
        '{"rebuild": "1", "offset": 0, "progress": ""}', '{"rebuild": 1, "offset": -1, "progress": ""}',
        '{"rebuild": 1, "offset": true, "progress": ""}', '{"rebuild": 1, "offset": 1e99, "progress": ""}',
        '{"rebuild": 99999999999999999999, "offset": 0, "progress": ""}',
        '{"rebuild": 1, "offset": 0, "progress": 7}', "[" * 250,
    ],
)  # fmt: skip
async def test_nonsense_ends_it(vera: Client, said: str) -> None:
    async with open_socket(vera) as socket:
        await socket.send_to(text_data=said)
        assert (await socket.receive_output())["code"] == websockets.NONSENSE


async def test_one_socket_follows_one_rebuild(vera: Client, rebuild: Rebuild) -> None:
    async with open_socket(vera) as socket:
        await socket.send_json_to({"rebuild": rebuild.pk, "offset": 0, "progress": "building-0"})
        await socket.send_json_to({"rebuild": rebuild.pk + 1, "offset": 0, "progress": ""})
        assert (await socket.receive_output())["code"] == websockets.NONSENSE
    async with open_socket(vera) as socket:
        await socket.send_json_to({"rebuild": rebuild.pk + 1, "offset": 0, "progress": ""})
        assert (await socket.receive_output())["code"] == websockets.UNKNOWN


async def test_who_loses_the_right_sees_no_more_of_it(
    olivia: Client, operator: User, rebuild: Rebuild, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supervise.console.websockets.RECHECK_SECONDS", 0.01)
    async with open_socket(olivia) as socket:
        await socket.send_json_to({"rebuild": rebuild.pk, "offset": 0, "progress": "building-0"})
        await sync_to_async(operator.user_permissions.clear)()
        assert (await socket.receive_output())["code"] == FORBIDDEN


def test_the_end_of_a_log_is_whole_lines_and_says_where_it_ends(log: Log, rebuild: Rebuild) -> None:
    path = images.log_path(rebuild)
    assert build_log.end(path.with_name("none"), 10) == build_log.Part("", 0)
    log("é" * 10)
    log("short")
    assert build_log.end(path, 100) == build_log.Part("é" * 10 + "\nshort\n", 27)
    assert build_log.end(path, 8) == build_log.Part("short\n", 27)
    with path.open("ab") as file:
        file.write("é".encode()[:1])
    assert build_log.end(path, 100).offset == 27, "a line that is being written is not there yet"
