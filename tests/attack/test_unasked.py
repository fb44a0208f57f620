"""Origins that keep a connection and speak on it without being asked. Nobody may take it for an answer."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from tests.attack.conftest import Allowed
from tests.support.origins import UNASKED
from tests.support.proxy_harness import Answer, Client, Harness, eventually, get, pinned

pytestmark = pytest.mark.process
HOST = "api.example.com"
ROUTES = {
    "fast path": pinned(HOST, methods=["GET"]),
    "task": pinned(HOST, dlp={"out": False, "in": True}),
    "credential": pinned(HOST, auth={"scheme": "Bearer", "token_ref": "OTHER"}),
    "plain": pinned(HOST, methods=["GET"]),
}


class Asking:
    """Requests of two clients of one bottle, which share kept connections, on one of the ways."""

    def __init__(self, lab: Harness, way: str) -> None:
        self._lab = lab
        self._start = f"http://{HOST}" if way == "plain" else ""
        self._run = uuid4().hex
        self._asked: list[str] = []
        lab.publish("agent-a", [ROUTES[way]])
        self.one, self.other = (lab.client() if way == "plain" else lab.secured(HOST) for _ in range(2))
        for client in (self.one, self.other, self.one, self.other):
            self.answered(client)  # there is a kept connection, and what they send is known

    def message(self, path: str) -> bytes:
        self._asked.append(path := f"{path}/{self._run}/{len(self._asked)}")
        return get(f"{self._start}{path}", HOST)

    def ask(self, client: Client, path: str) -> Answer:
        return client.ask(self.message(path))

    def answered(self, client: Client) -> None:
        client.send(self.message("/allowed"))
        self.is_answered(client)

    def is_answered(self, client: Client) -> None:
        answer = client.answer()
        assert answer.status == 200, answer.body
        assert answer.json["target"] == self._asked[-1]

    def check(self) -> None:
        """Everybody got what they asked for and nothing else, and this is what was noted."""
        for client in (self.one, self.other):
            self.answered(client)  # whatever came before would be taken for this answer
        assert b"poison" not in self._lab.received()
        eventually(lambda: len(self._noted()) == len(self._asked), "the records")
        noted = self._noted()
        assert [each["path"] for each in noted] == self._asked
        assert {(each["verdict"], each["reason"], each["status"]) for each in noted} == {
            ("allowed", "ok", 200)
        }

    def _noted(self) -> list[dict[str, Any]]:
        return [each for each in self._lab.records() if self._run in each["path"]]


@pytest.fixture(params=ROUTES)
def asking(lab: Harness, allowed: Allowed, request: pytest.FixtureRequest) -> Asking:
    folder = lab.home / "secrets"
    folder.mkdir(mode=0o700, exist_ok=True)
    (folder / "OTHER").touch(0o600)
    (folder / "OTHER").write_text("nothing-that-comes-back")
    allowed[HOST] = ("/allowed", "/twice", "/twice-in-chunks", "/twice-apart")
    return Asking(lab, request.param)


@pytest.mark.parametrize("path", ["/twice", "/twice-in-chunks"])
def test_a_second_answer_in_the_same_piece_is_thrown_away(asking: Asking, path: str) -> None:
    for _ in range(3):
        assert asking.ask(asking.one, path).body == b"asked for"
        for client in (asking.other, asking.one):
            asking.answered(client)
    asking.check()


def test_a_second_answer_a_moment_later_is_thrown_away(lab: Harness, asking: Asking) -> None:
    for _ in range(3):
        assert asking.ask(asking.one, "/twice-apart").body == b"asked for"
        lab.requests[-1].wanted = 2
        eventually(lambda: lab.requests[-1].sent == 2, "the second answer")
        for client in (asking.other, asking.one):
            asking.answered(client)
    asking.check()


@pytest.mark.parametrize("first", ["answer", "request"])
def test_an_answer_just_before_the_request_is_not_taken_for_its_own(
    lab: Harness, asking: Asking, first: str
) -> None:
    """The proxy finds both at once when it wakes up: it had asked for nothing when the answer came."""
    for number in range(10):
        client = (asking.one, asking.other)[number % 2]
        asking.answered(client)
        message = asking.message("/allowed")
        with lab.held("agent-a"):
            if first == "request":
                client.send(message)
            assert lab.origins.speak(HOST, UNASKED)
            if first == "answer":
                client.send(message)
        asking.is_answered(client)
    asking.check()
