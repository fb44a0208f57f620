"""What comes back is searched a step at a time, and what cannot be searched is refused in true words."""

from __future__ import annotations

from pathlib import Path

import pytest

from egress.dlp.scanner import OVERLAP, PART, WINDOW, Matcher, Scanner
from egress.dlp.secret_encodings import LONGEST_FORM
from egress.policy.routes import Route
from egress.proxy.config import Limits
from egress.proxy.errors import BadAnswer, Refusal
from egress.proxy.http.heads import parse_request, parse_response
from egress.proxy.http.targets import inner_target
from egress.proxy.request.inspection import Inspection, search_head
from egress.proxy.state.bottle import BottleState
from egress.proxy.state.memory import MemoryReservation
from egress.proxy.state.records import blank_record
from tests.support.proxy_harness import get
from tests.support.steps import finish

TEXT = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 1000000\r\n\r\n"
SWITCHING = b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"
SECRET = "abcdefgh"
MASKED = b"\x81\x81\x00\x00\x00\x00."


def answered(head: bytes, *secrets: str, hold: MemoryReservation | None = None) -> Inspection:
    route = Route.from_dict({"host": "api.example.com", "dlp": {"in": True}})
    inspection = Inspection(Scanner(secrets), route, blank_record("agent-a"), hold)
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


def test_a_clean_url_or_header_vouches_only_for_itself() -> None:
    scanner = Scanner([SECRET])

    def place(host: str, target: str, field: str) -> str | None:
        head = parse_request(get(target, host, field), max_fields=10)
        found = search_head(scanner, inner_target(head, "https", host, 443), head, head.travelling)
        return found and found.where

    for _ in range(3):
        assert place("api.example.com", "/x", "X-Note: a") is None
        assert place("api.example.com", "/x", f"X-Note: {SECRET}") == "header"
        assert place("api.example.com", f"/x?{SECRET}", "X-Note: a") == "url"
        assert place(f"{SECRET}.example.com", "/x", "X-Note: a") == "url"


def test_what_is_known_as_clean_is_bounded() -> None:
    scanner = Scanner()
    for number in range(3000):
        head = parse_request(get(f"/{number}", "api.example.com", "X-Note: a"), max_fields=10)
        search_head(scanner, inner_target(head, "https", "api.example.com", 443), head, head.travelling)
    assert 0 < len(scanner.clean) < 600


@pytest.mark.parametrize(("secrets", "sought"), [((), "orders to an agent"), ((SECRET,), "bottle's secrets")])
def test_frames_that_cannot_be_read_are_refused_for_what_is_looked_for(
    secrets: tuple[str, ...], sought: str
) -> None:
    with pytest.raises(BadAnswer, match=sought):
        finish(answered(SWITCHING, *secrets).incoming(MASKED, last=False))


def test_a_hint_for_which_there_is_no_room_keeps_no_answer_back(tmp_path: Path) -> None:
    full = MemoryReservation(BottleState("agent-a", tmp_path, Limits()), 0)
    coded = TEXT.replace(b"\r\n\r\n", b"\r\nContent-Encoding: br\r\n\r\n")
    assert finish(answered(coded, hold=full).incoming(b"as it came", last=False)) == b"as it came"
    with pytest.raises(Refusal, match="too much"):
        answered(coded, SECRET, hold=full)


def test_no_step_cleans_much_of_one_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    cleaned: list[int] = []
    real = Matcher.ends
    monkeypatch.setattr(Matcher, "ends", lambda self, text: cleaned.append(len(text)) or real(self, text))
    frame = b"\x82\x7e" + (60_000).to_bytes(2) + SECRET.encode() * (60_000 // len(SECRET))
    assert finish(answered(SWITCHING, SECRET).incoming(frame, last=False))[4:] == b"*" * 60_000
    assert max(cleaned) <= PART + LONGEST_FORM
