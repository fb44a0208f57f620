"""TLS over plain transports: what goes in comes out, however it is cut up, whatever the other side does."""

from __future__ import annotations

import asyncio
import socket
import ssl

import pytest

from egress.proxy.berths import NARROW
from egress.proxy.ca import Authority
from tests.proxy.tls_peers import HOST, MUCH, PATIENCE, connected, opened, until


@pytest.mark.parametrize("size", [1, 16_384, 16_385, len(MUCH)])
async def test_what_is_written_arrives(authority: Authority, trusting: ssl.SSLContext, size: int) -> None:
    async with opened(authority, trusting) as (ours, peer):
        ours.wire.write(MUCH[:size])
        assert await peer.read(size) == MUCH[:size]


@pytest.mark.parametrize("cut", [1, 7, 16_384, 1 << 20])
async def test_what_is_sent_in_pieces_is_put_together(
    authority: Authority, trusting: ssl.SSLContext, cut: int
) -> None:
    size = 2000 if cut < 100 else len(MUCH)
    async with opened(authority, trusting) as (ours, peer):
        received = bytearray()
        ours.wire.sink = received.extend  # type: ignore[assignment]
        sealed = peer.sealed(MUCH[:size])
        for start in range(0, len(sealed), cut):
            await peer.send(sealed[start : start + cut])
        await until(lambda: len(received) == size)
        assert received == MUCH[:size]


async def test_a_message_that_comes_with_the_end_of_the_handshake_is_not_lost(
    authority: Authority, trusting: ssl.SSLContext
) -> None:
    async with connected(authority.context_for(HOST), trusting) as (ours, peer):
        shaking = asyncio.create_task(ours.tls.handshake(seconds=PATIENCE))
        await peer.send(await peer.shake_hands() + peer.sealed(b"GET /"))
        await shaking
        assert bytes(ours.wire.buffer) == b"GET /"


async def test_nothing_is_written_before_the_peer_is_known(
    authority: Authority, trusting: ssl.SSLContext
) -> None:
    async with connected(trusting, authority.context_for(HOST), as_client=True) as (ours, peer):
        shaking = asyncio.create_task(ours.tls.handshake(seconds=PATIENCE))
        await peer.receive()
        assert ours.wire.transport is None
        ours.wire.write(b"secret")
        await peer.send(await peer.shake_hands())
        await shaking
        ours.wire.write(b"now")
        assert await peer.read(3) == b"now"


async def test_a_certificate_for_another_name_is_refused(
    authority: Authority, trusting: ssl.SSLContext
) -> None:
    other = authority.context_for("other.example.com")
    greeted = other.sni_callback
    assert greeted is not None
    other.sni_callback = lambda connection, _, context: greeted(connection, "other.example.com", context)
    async with connected(trusting, other, as_client=True) as (ours, peer):
        shaking = asyncio.create_task(ours.tls.handshake(seconds=PATIENCE))
        with pytest.raises(ssl.SSLError, match="alert"):
            await peer.shake_hands()
            await peer.read(1)
        with pytest.raises(ssl.SSLCertVerificationError):
            await shaking
        assert ours.wire.transport is None


async def test_a_peer_that_says_nothing_is_not_waited_for(
    authority: Authority, trusting: ssl.SSLContext
) -> None:
    async with connected(authority.context_for(HOST), trusting) as (ours, peer):
        with pytest.raises(TimeoutError):
            await ours.tls.handshake(seconds=0.01)
        assert await asyncio.get_running_loop().sock_recv(peer.raw, 1) == b""


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", bytes(100), b"\x16\x03\x01\x00\x02\x01\x00"])
async def test_what_is_no_handshake_ends_it(
    authority: Authority, trusting: ssl.SSLContext, data: bytes
) -> None:
    async with connected(authority.context_for(HOST), trusting) as (ours, peer):
        await peer.send(data)
        with pytest.raises(OSError):
            peer.raw.shutdown(socket.SHUT_WR)
            await ours.tls.handshake(seconds=PATIENCE)
        assert ours.wire.transport is None


async def test_a_tampered_record_ends_the_connection(authority: Authority, trusting: ssl.SSLContext) -> None:
    async with opened(authority, trusting) as (ours, peer):
        sealed = bytearray(peer.sealed(b"transfer 1"))
        sealed[-1] ^= 1
        await peer.send(bytes(sealed))
        await until(lambda: ours.wire.closed)
        assert not ours.wire.buffer


async def test_the_peers_goodbye_is_an_end_after_all_that_came_before(
    authority: Authority, trusting: ssl.SSLContext
) -> None:
    async with opened(authority, trusting) as (ours, peer):
        last = peer.sealed(b"last words")
        with pytest.raises(ssl.SSLWantReadError):
            peer.tls.unwrap()
        await peer.send(last + peer.outgoing.read())
        await until(lambda: ours.wire.closed)
        assert (ours.wire.ended, bytes(ours.wire.buffer)) == (True, b"last words")


async def test_a_connection_that_breaks_off_is_an_end_too(
    authority: Authority, trusting: ssl.SSLContext
) -> None:
    async with opened(authority, trusting) as (ours, peer):
        peer.raw.shutdown(socket.SHUT_WR)
        await until(lambda: ours.wire.ended)


async def test_closing_says_goodbye_after_what_was_written(
    authority: Authority, trusting: ssl.SSLContext
) -> None:
    async with opened(authority, trusting) as (ours, peer):
        ours.wire.write(MUCH)
        ours.wire.close()
        ours.wire.write(b"too late")
        assert await peer.read(len(MUCH) + 1) == MUCH


async def test_a_peer_that_does_not_read_is_noticed(authority: Authority, trusting: ssl.SSLContext) -> None:
    async with opened(authority, trusting) as (ours, peer):
        while not ours.wire.choked:
            ours.wire.write(MUCH[: NARROW.unsent])
            await asyncio.sleep(0)
        reading = asyncio.create_task(peer.read(1 << 30))
        await until(lambda: not ours.wire.choked)
        ours.wire.close()
        assert len(await reading) % NARROW.unsent == 0


async def test_what_nobody_reads_is_not_received_without_end(
    authority: Authority, trusting: ssl.SSLContext
) -> None:
    async with opened(authority, trusting) as (ours, peer):
        sending = asyncio.create_task(peer.send(peer.sealed(MUCH)))
        await until(lambda: not ours.is_reading)
        assert len(ours.wire.buffer) <= NARROW.unread + NARROW.read
        received = b""
        while len(received) < len(MUCH):
            received += ours.wire.take(len(ours.wire.buffer))
            await asyncio.sleep(0)
        await sending
        assert received == MUCH
