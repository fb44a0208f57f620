"""Large answers from one TLS to the other: every byte, in order, and not one more than was promised."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from egress.proxy.tls.authority import Authority
from tests.support.origins import big
from tests.support.proxy_harness import Client, Harness, at_rest, eventually, get, pinned
from tests.support.tls_peers import HOST, MUCH, Ours, Peer, opened, until


@asynccontextmanager
async def between(
    authority: Authority, trusting: ssl.SSLContext, count: int
) -> AsyncIterator[tuple[Ours, Peer, Ours, Peer, list[int]]]:
    """What `far` sends is passed on to `reader`, so many bytes of it."""
    moved: list[int] = []
    async with opened(authority, trusting) as (source, far), opened(authority, trusting) as (target, reader):
        source.tls.pass_on(count, target.tls, moved.append)
        yield source, far, target, reader, moved


@pytest.mark.parametrize("record", [1, 1000, 16_384])
async def test_the_rest_of_what_arrives_is_not_passed_on(
    authority: Authority, trusting: ssl.SSLContext, record: int
) -> None:
    count = 3000 if record == 1 else len(MUCH) - 70
    async with between(authority, trusting, count) as (source, far, _, reader, moved):
        sealed = b"".join(far.sealed(MUCH[at : at + record]) for at in range(0, count + 70, record))
        await far.send(sealed)
        assert await reader.read(count) == MUCH[:count]
        await until(lambda: len(source.wire.buffer) >= 70)
        assert sum(moved) == count
        assert bytes(source.wire.buffer[:70]) == MUCH[count : count + 70]


async def test_small_records_leave_as_large_ones(authority: Authority, trusting: ssl.SSLContext) -> None:
    """One record for each would cost more than it saves."""
    async with between(authority, trusting, 16_384) as (_, far, _, reader, _):
        before = reader.received
        await far.send(b"".join(far.sealed(MUCH[at : at + 64]) for at in range(0, 16_384, 64)))
        assert await reader.read(16_384) == MUCH[:16_384]
        assert reader.received - before < 16_384 + 64 * 22


async def test_an_end_before_its_time_is_told(authority: Authority, trusting: ssl.SSLContext) -> None:
    async with between(authority, trusting, 1000) as (source, far, _, reader, moved):
        await far.send(far.sealed(MUCH[:400]))
        assert await reader.read(400) == MUCH[:400]
        far.raw.close()
        await until(lambda: source.wire.ended)
        assert sum(moved) == 400


async def test_nothing_is_written_to_one_that_is_closed(
    authority: Authority, trusting: ssl.SSLContext
) -> None:
    async with between(authority, trusting, len(MUCH)) as (source, far, target, _, moved):
        target.tls.abort()
        await far.send(far.sealed(MUCH))
        await until(lambda: sum(moved) == len(MUCH))
        assert not source.wire.ended


async def test_one_that_can_send_no_more_is_broken_off(
    authority: Authority, trusting: ssl.SSLContext
) -> None:
    """What follows would not fit to what it has sent."""
    async with between(authority, trusting, len(MUCH)) as (_, far, target, _, _):
        target.tls._session.say_goodbye()  # of which its transport knows nothing
        await far.send(far.sealed(MUCH))
        await until(lambda: target.wire.closed)


# --- the same in the real process

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
