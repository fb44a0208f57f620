"""Real WebSocket clients: messages both ways on the allowed path, a readable refusal on any other."""

from __future__ import annotations

import sys

import pytest

from tests.support.tool_env import DENIED, PROGRAMS, SOCKETS, Bottle, refusal_in

pytestmark = [pytest.mark.process, pytest.mark.tools]


@pytest.fixture(params=["websockets", "ws"])
def talk(bottle: Bottle, request: pytest.FixtureRequest):
    if request.param == "websockets":
        program = (sys.executable, PROGRAMS / "with_websockets.py")
    else:
        program = (request.getfixturevalue("node"), PROGRAMS / "with_ws.mjs")
    return lambda url: bottle.run(*program, url).json


def test_messages_come_back_unchanged(talk) -> None:
    assert talk(f"wss://{SOCKETS}/chat") == {"same": [True, True, True]}


@pytest.mark.parametrize("url", [f"wss://{SOCKETS}/admin", f"wss://{DENIED}/chat"])
def test_a_refusal_says_how_to_ask(talk, url: str) -> None:
    told = talk(url)
    assert (told["status"], refusal_in(told["body"])["arguments"]["host"]) == (403, url.split("/")[2])
