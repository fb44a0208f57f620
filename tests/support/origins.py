"""Origins that write down every byte they get, read by a second HTTP parser, on addresses of their own."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import h11
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

WEBSOCKET = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
FIRST_ADDRESS = "127.0.0.2"  # all who run origins take their ports here, so that no two choose the same


@dataclass
class Seen:
    """One request as an origin understood it. `whole` is false while its body is not complete."""

    origin: str
    tls: bool
    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytearray = field(default_factory=bytearray)
    trailers: list[tuple[str, str]] = field(default_factory=list)
    whole: bool = False
    sent: int = 0  # how many answers or events have left
    wanted: int = 1  # how many of those that come in turn may leave

    def values(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key == name.lower()]


@dataclass
class Connection:
    """`broken` says what a second parser could not make sense of."""

    origin: str
    tls: bool
    raw: bytearray = field(default_factory=bytearray)
    broken: str = ""


class TestAuthority:
    """A CA that the proxy is told to trust, and certificates that are right or wrong in one way."""

    __test__ = False

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test origins")])
        self.certificate = self._sign(self._name, self._key, [], ca=True)
        self.path = directory / "origins-ca.pem"
        self.path.write_bytes(self.certificate.public_bytes(serialization.Encoding.PEM))

    def context(self, names: list[str], *, days: int = 30, alpn: list[str] | None = None) -> ssl.SSLContext:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
        leaf = self._sign(subject, key, names, days=days)
        path = self._directory / f"{names[0]}-{days}.pem"
        path.write_bytes(
            leaf.public_bytes(serialization.Encoding.PEM)
            + key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(path)
        context.set_alpn_protocols(alpn or ["http/1.1"])
        return context

    def _sign(
        self, subject: x509.Name, key: Any, names: list[str], *, ca: bool = False, days: int = 30
    ) -> x509.Certificate:
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=400))
            .not_valid_after(now + timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        )
        if names:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False
            )
        return builder.sign(self._key, hashes.SHA256())


class Origins:
    """Every origin listens on the same two ports of an address of its own. All run in one thread."""

    def __init__(self) -> None:
        self.requests: list[Seen] = []
        self.connections: list[Connection] = []
        self._bound = [_bound(FIRST_ADDRESS, 0) for _ in range(2)]
        self.tls_port, self.http_port = (int(each.getsockname()[1]) for each in self._bound)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._servers: list[asyncio.Server] = []
        self._open: set[_Session] = set()

    def add(self, name: str, address: str, context: ssl.SSLContext) -> None:
        self._call(self._listen(name, address, context))

    def forget(self) -> None:
        self.requests.clear()
        self.connections.clear()

    def speak(self, name: str, data: bytes) -> int:
        """Unasked, on every open connection to it; on how many. They have it when this returns."""
        return self._call(self._speak(name, data))

    def close(self) -> None:
        self._call(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def _call(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(20)

    async def _stop(self) -> None:
        for server in self._servers:
            server.close()
        for bound in self._bound:
            bound.close()
        current = asyncio.current_task()
        tasks = [task for task in asyncio.all_tasks() if task is not current]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _speak(self, name: str, data: bytes) -> int:
        told = [session for session in self._open if session.connection.origin == name]
        for session in told:
            with suppress(OSError):  # it may be about to end
                await session.send(data)
        return len(told)

    async def _listen(self, name: str, address: str, context: ssl.SSLContext) -> None:
        if address == FIRST_ADDRESS:
            bound, self._bound = self._bound, []
        else:
            bound = [_bound(address, port) for port in (self.tls_port, self.http_port)]
        for listening, tls in zip(bound, (context, None), strict=True):

            async def accepted(
                reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secured: bool = tls is not None
            ) -> None:
                await self._serve(name, secured, reader, writer)

            self._servers.append(await asyncio.start_server(accepted, sock=listening, ssl=tls))

    async def _serve(
        self, name: str, tls: bool, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        session = _Session(self, Connection(name, tls), reader, writer)
        self.connections.append(session.connection)
        self._open.add(session)
        try:
            while await session.one_request():
                pass
        except h11.ProtocolError as error:
            session.connection.broken = str(error)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._open.discard(session)
            writer.close()


class _Session:
    def __init__(
        self,
        origins: Origins,
        connection: Connection,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._origins = origins
        self.connection = connection
        self._reader = reader
        self._writer = writer
        self._parser = h11.Connection(h11.SERVER)

    async def one_request(self) -> bool:
        event = await self._event()
        if not isinstance(event, h11.Request):
            return False
        seen = Seen(
            self.connection.origin,
            self.connection.tls,
            event.method.decode(),
            event.target.decode(),
            [(name.decode(), value.decode("latin-1")) for name, value in event.headers],
        )
        self._origins.requests.append(seen)
        path = seen.target.partition("?")[0]
        if path == "/early":
            await self.send(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nbig")
            return False
        if path == "/unread":  # nor is anything that follows
            return await _silent(seen, self.send)
        if self._parser.they_are_waiting_for_100_continue:
            await self.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        if path in RAW:
            await self.send(RAW[path])
            return False
        if path == "/websocket":
            return await self._websocket(seen)
        if path == "/breaks-off":
            await self.send(b"HTTP/1.1 200 OK\r\n\r\nhalf of it")
            self._writer.transport.abort()  # without the goodbye of TLS
            return False
        while True:
            event = await self._event()
            if isinstance(event, h11.Data):
                seen.body += event.data
            elif isinstance(event, h11.EndOfMessage):
                seen.trailers = [(name.decode(), value.decode("latin-1")) for name, value in event.headers]
                seen.whole = True
                break
            else:
                return False
        answer = ANSWERS.get(path.split("/")[1], _echo)
        keep = await answer(seen, self.send)
        if keep:
            self._parser.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
            self._parser.send(h11.EndOfMessage())
            self._parser.start_next_cycle()
        return keep

    async def _event(self) -> Any:
        while True:
            event = self._parser.next_event()
            if event is not h11.NEED_DATA:
                return event
            data = await self._reader.read(65536)
            self.connection.raw += data
            self._parser.receive_data(data)

    async def send(self, data: bytes) -> None:
        if self._writer.is_closing():  # to write then can be any kind of error, with TLS
            raise ConnectionResetError
        self._writer.write(data)
        await self._writer.drain()

    async def _websocket(self, seen: Seen) -> bool:
        """A genuine handshake, then every byte comes back."""
        key = seen.values("sec-websocket-key")[0].encode()
        accept = base64.b64encode(hashlib.sha1(key + WEBSOCKET).digest())
        await self.send(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: " + accept + b"\r\n\r\n"
        )
        seen.whole = True
        while data := await self._reader.read(65536):
            self.connection.raw += data
            await self.send(data)
        return False


Send = Callable[[bytes], Awaitable[None]]


def _plain(body: bytes, *extra: str, status: str = "200 OK") -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *extra, "", ""]
    return "\r\n".join(lines).encode() + body


UNASKED = _plain(b"poison", status="418 Unasked")


async def _echo(seen: Seen, send: Send) -> bool:
    told = {
        "origin": seen.origin,
        "method": seen.method,
        "target": seen.target,
        "body": seen.body.decode("latin-1"),
        "trailers": seen.trailers,
    }
    body = json.dumps(told).encode()
    await send(
        _plain(b"" if seen.method == "HEAD" else body, *(["X-Head: yes"] if seen.method == "HEAD" else []))
    )
    return True


async def _same_head(seen: Seen, send: Send) -> bool:
    """To a HEAD, the head of the answer to a GET."""
    answer = _plain(b"here")
    await send(answer[:-4] if seen.method == "HEAD" else answer)
    return True


async def _body_to_all(seen: Seen, send: Send) -> bool:
    """Also to a HEAD, which is wrong."""
    await send(_plain(b"here"))
    return True


def big(size: int) -> Iterator[bytes]:
    """The body of `/big/<size>`: no two blocks are alike."""
    block = bytes(range(256)) * 256
    for start in range(0, size, len(block)):
        yield (start.to_bytes(8, "big") + block[8:])[: size - start]


async def _big(seen: Seen, send: Send) -> bool:
    size = int(seen.target.rpartition("/")[2])
    await send(f"HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n".encode())
    for block in big(size):
        await send(block)
        seen.sent += len(block)
    return True


async def _half(seen: Seen, send: Send) -> bool:
    """Of what it says."""
    size = int(seen.target.rpartition("/")[2])
    body = b"".join(big(size))
    await send(f"HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n".encode() + body[: size // 2])
    return False


async def _big_and_more(seen: Seen, send: Send) -> bool:
    """An answer that nobody asked for begins in the last record of the one that somebody did."""
    await send(_plain(b"".join(big(int(seen.target.rpartition("/")[2])))) + UNASKED)
    return True


async def _chunked(seen: Seen, send: Send) -> bool:
    await send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n5\r\nhello\r\n")
    await send(b"6\r\n world\r\n0\r\nX-Sum: 11\r\n\r\n")
    return True


async def _events(seen: Seen, send: Send) -> bool:
    await send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
    for number in range(10_000):
        event = f"data: {number}\n\n".encode()
        await send(b"%x\r\n%b\r\n" % (len(event), event))
        seen.sent += 1
        await asyncio.sleep(0.02)
    return False


async def _events_in_turn(seen: Seen, send: Send) -> bool:
    """Each when the test wants it, so that no two travel together."""
    await send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
    for number in range(10_000):
        await _its_turn(seen)
        event = f"data: {number}\n\n".encode()
        await send(b"%x\r\n%b\r\n" % (len(event), event))
        seen.sent += 1
    return False


async def _its_turn(seen: Seen) -> None:
    while seen.sent >= seen.wanted:
        await asyncio.sleep(0.005)


async def _twice(seen: Seen, send: Send) -> bool:
    """Two answers to one request, in one piece."""
    await send(_plain(b"asked for") + UNASKED)
    return True


async def _twice_in_chunks(seen: Seen, send: Send) -> bool:
    await send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nasked for\r\n0\r\n\r\n" + UNASKED)
    return True


async def _twice_apart(seen: Seen, send: Send) -> bool:
    """The second when the test has the first."""
    await send(_plain(b"asked for"))
    seen.sent = 1
    await _its_turn(seen)
    await send(UNASKED)
    seen.sent = 2
    return True


async def _until_close(seen: Seen, send: Send) -> bool:
    await send(b"HTTP/1.1 200 OK\r\n\r\nall of it")
    return False


async def _status(seen: Seen, send: Send) -> bool:
    await send(f"HTTP/1.1 {seen.target.rpartition('/')[2]} Status\r\nX-Kept: yes\r\n\r\n".encode())
    return True


async def _silent(seen: Seen, send: Send) -> bool:
    await asyncio.sleep(3600)
    return False


async def _redirect(seen: Seen, send: Send) -> bool:
    await send(_plain(b"", "Location: https://other.example.com/stolen", status="302 Found"))
    return True


async def _reflect(seen: Seen, send: Send) -> bool:
    """Everything that was sent comes back, in headers and body."""
    secrets = "; ".join(f"{key}={value}" for key, value in seen.headers)
    await send(_plain(secrets.encode("latin-1"), f"X-Reflected: {secrets}", "Set-Cookie: session=1"))
    return True


async def _reflect_in_pieces(seen: Seen, send: Send) -> bool:
    size = int(seen.target.rpartition("/")[2])
    text = seen.values("authorization")[0].encode()
    await send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    for start in range(0, len(text), size):
        piece = text[start : start + size]
        await send(b"%x\r\n%b\r\n" % (len(piece), piece))
        await asyncio.sleep(0.002)
    await send(b"0\r\n\r\n")
    return True


async def _reflect_in_part(seen: Seen, send: Send) -> bool:
    """The part that was asked for, by any header that some server takes for Range."""
    text = seen.values("authorization")[0].encode()
    asked = [value for key, value in seen.headers if key.replace("_", "-").endswith("range")]
    match = re.fullmatch(r"bytes=(\d+)-(\d+)", asked[0]) if asked else None
    if match is None:
        await send(_plain(text))
    else:
        await send(_plain(text[int(match[1]) : int(match[2]) + 1], status="206 Partial Content"))
    return True


async def _in_pieces(seen: Seen, send: Send) -> bool:
    for piece in (b"HTTP/1.1 200 OK\r\nContent-", b"Length: 9\r\n\r\n", b"in pi", b"eces"):
        await send(piece)
        await asyncio.sleep(0.1)
    return True


async def _hints(seen: Seen, send: Send) -> bool:
    await send(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + _plain(b"done"))
    return True


async def _many_hints(seen: Seen, send: Send) -> bool:
    hint = b"HTTP/1.1 103 Early Hints\r\nLink: </%b>\r\n\r\n" % (b"a" * 60_000)
    for _ in range(int(seen.target.rpartition("/")[2])):
        await send(hint)
    await send(_plain(b"done"))
    return True


ANSWERS: dict[str, Callable[[Seen, Send], Awaitable[bool]]] = {
    "big": _big,
    "half": _half,
    "big-and-more": _big_and_more,
    "same-head": _same_head,
    "body-to-all": _body_to_all,
    "chunked": _chunked,
    "events": _events,
    "events-in-turn": _events_in_turn,
    "twice": _twice,
    "twice-in-chunks": _twice_in_chunks,
    "twice-apart": _twice_apart,
    "until-close": _until_close,
    "status": _status,
    "silent": _silent,
    "redirect": _redirect,
    "reflect": _reflect,
    "reflect-in-part": _reflect_in_part,
    "in-pieces": _in_pieces,
    "reflect-in-pieces": _reflect_in_pieces,
    "hints": _hints,
    "many-hints": _many_hints,
}

RAW: dict[str, bytes] = {
    "/fake-101": (
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nraw pipe"
    ),
    "/fake-accept": (
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Accept: AAAAAAAAAAAAAAAAAAAAAAAAAAA=\r\n\r\nraw pipe"
    ),
    "/two-lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 9\r\n\r\nok",
    "/length-and-chunked": (
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
    ),
    "/bad-chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\nzz\r\nno\r\n",
    "/truncated": b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort",
    "/header-injection": b"HTTP/1.1 200 OK\r\nX-A: b\rX-C: d\r\nContent-Length: 2\r\n\r\nok",
    "/folded": b"HTTP/1.1 200 OK\r\nX-A: b\r\n c\r\nContent-Length: 2\r\n\r\nok",
    "/not-http": b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
    "/no-answer": b"",
}


def _bound(address: str, port: int) -> socket.socket:
    """Taken from now on; it listens later. Named as TCP: else asyncio would let small answers wait."""
    bound = socket.socket(proto=socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind((address, port))
    return bound
