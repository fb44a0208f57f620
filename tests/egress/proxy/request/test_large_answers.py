"""Large answers from one TLS to the other: every byte, in order, and not one more than was promised."""

from __future__ import annotations

import pytest

from tests.support.origins import big
from tests.support.proxy_harness import Client, Harness, at_rest, eventually, get, pinned
from tests.support.tls_peers import HOST

SIZE = 3_000_000
BODY = b"".join(big(SIZE))
ROUTE = pinned(HOST, path_allowlist=["/big", "/half", "/big-and-more", "/allowed"])


@pytest.fixture
def reading(lab: Harness) -> Client:
    lab.publish("agent-a", [ROUTE])
    client = lab.secured(HOST)
    assert client.ask(get("/allowed", HOST)).status == 200
    return client


@pytest.mark.process
def test_large_answers_follow_each_other_on_one_connection(lab: Harness, reading: Client) -> None:
    for _ in range(3):
        assert reading.ask(get(f"/big/{SIZE}", HOST)).body == BODY
        assert reading.ask(get("/allowed", HOST)).status == 200
    assert len([each for each in lab.origins.connections if each.origin == HOST]) <= 1
    assert [each["bytes_in"] for each in lab.records() if "/big" in each["path"]][-3:] == [SIZE] * 3


@pytest.mark.process
def test_what_follows_a_large_answer_is_nobodys(lab: Harness, reading: Client) -> None:
    assert reading.ask(get(f"/big-and-more/{SIZE}", HOST)).body == BODY
    again = reading.ask(get("/allowed", HOST))
    assert again.status == 200 and again.json["target"] == "/allowed"


@pytest.mark.process
def test_an_answer_that_ends_too_early_ends_the_connection(lab: Harness, reading: Client) -> None:
    reading.send(get(f"/half/{SIZE}", HOST))
    head, _, body = reading.everything().partition(b"\r\n\r\n")
    assert b"Content-Length: 3000000" in head
    assert BODY[: SIZE // 2].startswith(body)


@pytest.mark.process
def test_a_revoked_route_cuts_a_large_answer(lab: Harness, reading: Client) -> None:
    reading.send(get("/big/300000000", HOST))
    reading.take(SIZE)
    lab.publish("agent-a", [])
    assert len(reading.everything()) < 100_000_000
    eventually(lambda: any("/big/3" in each["path"] for each in lab.records()), "its record")


@pytest.mark.process
def test_who_does_not_read_is_not_read_for(lab: Harness, reading: Client) -> None:
    """The origin is held back, so nothing piles up in between."""
    reading.send(get("/big/300000000", HOST))
    reading.take(SIZE)
    assert at_rest(lambda: lab.requests[-1].sent) < 150_000_000  # what the kernel keeps for three sockets
    assert reading.take(100_000_000)
