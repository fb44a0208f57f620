"""What comes back is searched a step at a time, and what cannot be searched is refused in true words."""

from __future__ import annotations

import pytest

from egress.dlp import OVERLAP, WINDOW, Matcher, Scanner
from egress.proxy.errors import BadAnswer
from egress.proxy.head import parse_response
from egress.proxy.inspection import Inspection
from egress.proxy.records import blank_record
from egress.routes import Route
from tests.egress.steps import finish

TEXT = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 1000000\r\n\r\n"
SWITCHING = b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"
SECRET = "abcdefgh"
MASKED = b"\x81\x81\x00\x00\x00\x00."


def answered(head: bytes, *secrets: str) -> Inspection:
    route = Route.from_dict({"host": "api.example.com", "dlp": {"in": True}})
    inspection = Inspection(Scanner(secrets), route, blank_record("agent-a"))
    answer = parse_response(head, max_fields=10, to_head=False)
    inspection.answer(answer, answer.travelling)
    return inspection


def test_no_step_searches_and_cleans_much_of_what_came_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    searched, most = 0, 0

    def counting(real: object) -> object:
        def count(self: Matcher, text: bytes) -> object:
            nonlocal searched
            searched += len(text)
            return real(self, text)

        return count

    inspection = answered(TEXT, SECRET)
    monkeypatch.setattr(Matcher, "first", counting(Matcher.first))
    monkeypatch.setattr(Matcher, "ends", counting(Matcher.ends))
    for _ in inspection.incoming(SECRET.encode() * 40_000, last=False):
        most, searched = max(most, searched), 0
    assert 0 < max(most, searched) <= WINDOW + OVERLAP


@pytest.mark.parametrize(("secrets", "sought"), [((), "orders to an agent"), ((SECRET,), "bottle's secrets")])
def test_frames_that_cannot_be_read_are_refused_for_what_is_looked_for(
    secrets: tuple[str, ...], sought: str
) -> None:
    with pytest.raises(BadAnswer, match=sought):
        finish(answered(SWITCHING, *secrets).incoming(MASKED, last=False))
