"""What one connection has found out about a tool's usual request, the next one need not find out again."""

from __future__ import annotations

from typing import Any, cast

import pytest

from egress.policy import RouteTable, Snapshot
from egress.proxy.habits import Answer, Habit, Habits
from tests.proxy.lab import Client, Lab, get, pinned

HOST, OTHER = "api.example.com", "other.example.com"
TOKEN = "ghp_" + "a1B2" * 9
NOTE = "X-Note: the same each time"


@pytest.fixture
def known(lab: Lab) -> bytes:
    """A request whose fields were learnt on a connection that is gone."""
    lab.publish("agent-a", [pinned(HOST, methods=["GET"]), pinned(OTHER, methods=["GET"])])
    asked = get("/x", HOST, NOTE)
    client = lab.secured(HOST)
    assert [client.ask(asked).status for _ in range(3)] == [200, 200, 200]
    client.close()
    lab.origins.forget()
    return asked


def anew(lab: Lab, asked: bytes, host: str = HOST) -> Client:
    client = lab.secured(host)
    client.send(asked)
    return client


def test_a_new_connection_sends_and_answers_the_same(lab: Lab, known: bytes) -> None:
    for _ in range(3):
        assert anew(lab, known).answer().json["target"] == "/x"
    assert [seen.values("x-note") for seen in lab.requests] == [["the same each time"]] * 3
    assert lab.origins.connections == []  # the kept one served them all
    assert [record["path"] for record in lab.records()[-3:]] == ["/x"] * 3


def test_what_is_known_of_one_host_is_not_true_of_another(lab: Lab, known: bytes) -> None:
    assert anew(lab, known, OTHER).answer().reason == "host-mismatch"
    assert lab.requests == []


def test_a_new_table_counts_for_the_next_connection(lab: Lab, known: bytes) -> None:
    lab.publish("agent-a", [pinned(HOST, path_allowlist=["/elsewhere"])])
    assert anew(lab, known).answer().reason == "path"
    lab.publish("agent-a", [])
    assert anew(lab, known).answer().reason == "no-route"
    assert lab.requests == []


def test_another_bottle_has_its_own(lab: Lab, known: bytes) -> None:
    client = lab.secured(HOST, slug="agent-b")
    assert client.ask(known).reason == "no-route"
    assert lab.requests == []


@pytest.mark.parametrize(
    ("line", "reason"),
    [("DELETE /x", "method"), ("GET /x/../y", "bad-path"), (f"GET /x?{TOKEN}", "dlp"), ("GET x", "bad-head")],
)
def test_known_fields_vouch_for_no_line(lab: Lab, known: bytes, line: str, reason: str) -> None:
    assert anew(lab, known).answer().status == 200
    asked = f"{line} HTTP/1.1\r\n".encode() + known.partition(b"\r\n")[2]
    assert anew(lab, asked).answer().reason == reason
    assert len(lab.requests) == 1


def test_what_differs_in_one_byte_is_searched(lab: Lab, known: bytes) -> None:
    assert anew(lab, known.replace(NOTE.encode(), f"X-Note: {TOKEN}".encode())).answer().reason == "dlp"
    assert lab.requests == []


def test_only_the_hosts_that_were_asked_last_are_kept() -> None:
    habits = Habits()
    first = habits.of("host-0")
    first.snapshot = Snapshot("agent-a", 1, RouteTable(), "")
    for number in range(1, 64):
        habits.of(f"host-{number}")
    assert habits.of("host-0") is first
    for number in range(64, 127):
        habits.of(f"host-{number}")
    assert habits.of("host-0") is first
    for number in range(200, 264):
        habits.of(f"host-{number}")
    assert habits.of("host-0") is not first


def test_large_heads_are_kept_by_their_own_connection_only() -> None:
    host = Habits().of(HOST)
    small = Habit(b"x", cast(Any, None), cast(Any, None), True, ("https", HOST, ()), b"x")
    answer = Answer(b"x", False, 1, 200, 0, True, b"x")
    assert (host.keep_request(small), host.keep_answer(answer)) == (small, answer)
    large, long = small._replace(fields=b"x" * 3000), answer._replace(raw=b"x" * 3000)
    assert (host.keep_request(large), host.keep_answer(long)) == (large, long)
    assert (host.request, host.answer) == (small, answer)
