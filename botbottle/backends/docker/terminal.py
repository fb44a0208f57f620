"""Joins a terminal, or files, to a stream of the Docker engine, in both directions and with bounded buffers.

Trust boundary: the stream's output is an agent's; bytes are passed on and never interpreted.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import socket
import struct
import termios
import threading
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType

from botbottle.core.plan_types import BackendError

_CHUNK = 65536
_HEAD_LIMIT = 65536
_STDERR = 2

Resize = Callable[[int, int], None]


@dataclass(slots=True)
class Stream:
    """An upgraded connection to the engine. `framed` streams separate standard output and error."""

    socket: socket.socket
    framed: bool
    received: bytearray = field(default_factory=bytearray)


def upgrade(engine: str, path: str, body: dict[str, object] | None, *, framed: bool) -> Stream:
    """Open a stream in both directions. The SDK can lose bytes that follow the engine's answer at once."""
    content = json.dumps(body or {}).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: docker\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    return _request(engine, head.encode() + content, framed=framed)


def download(engine: str, path: str, *, framed: bool) -> Iterator[bytes]:
    """Yield the engine's output as it arrives. The SDK yields a terminal's output byte by byte."""
    stream = _request(engine, f"GET {path} HTTP/1.0\r\nHost: docker\r\n\r\n".encode(), framed=framed)
    with stream.socket:
        while True:
            yield from (data for _, data in _output(stream))
            received = stream.socket.recv(_CHUNK)
            if not received:
                return
            stream.received += received


def _request(engine: str, request: bytes, *, framed: bool) -> Stream:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(engine)
        connection.sendall(request)
        return Stream(connection, framed, _after_head(connection))
    except OSError as error:
        connection.close()
        raise BackendError(f"The Docker engine's stream broke: {error}. Try again.") from error
    except BackendError:
        connection.close()
        raise


def _after_head(connection: socket.socket) -> bytearray:
    received = bytearray()
    while b"\r\n\r\n" not in received:
        data = connection.recv(_CHUNK)
        if not data or len(received) > _HEAD_LIMIT:
            raise BackendError("The Docker engine closed the stream before it began. Try again.")
        received += data
    head, _, rest = bytes(received).partition(b"\r\n\r\n")
    if head.split(b" ", 2)[1] not in (b"101", b"200"):
        raise BackendError(f"The Docker engine refused the stream: {rest.decode(errors='replace').strip()}")
    return bytearray(rest)


def relay(stream: Stream, *, source: int | None, out: int, err: int) -> None:
    """Copy until the engine ends the stream. `source` is read only as fast as the other side accepts."""
    connection = stream.socket
    connection.setblocking(False)
    pending = b""
    try:
        _write_output(stream, out, err)
        while True:
            reading = [connection] + ([source] if source is not None and not pending else [])
            ready, writable, _ = select.select(reading, [connection] if pending else [], [])
            if writable:
                pending = pending[_send(connection, pending) :]
            if source in ready and source is not None:
                pending = _read(source)
                if not pending:
                    source = None
                    with suppress(OSError):
                        connection.shutdown(socket.SHUT_WR)
            if connection in ready:
                data = _receive(connection)
                if data == b"":
                    return
                stream.received += data or b""
                _write_output(stream, out, err)
    finally:
        connection.close()


def _read(source: int) -> bytes:
    try:
        return os.read(source, _CHUNK)
    except OSError:  # a terminal that hung up
        return b""


def _receive(connection: socket.socket) -> bytes | None:
    try:
        return connection.recv(_CHUNK)
    except BlockingIOError:
        return None
    except ConnectionError:
        return b""


def _send(connection: socket.socket, data: bytes) -> int:
    try:
        return connection.send(data)
    except BlockingIOError:
        return 0
    except OSError:  # it accepts no more input; its output is still read
        return len(data)


def _write_output(stream: Stream, out: int, err: int) -> None:
    for kind, data in _output(stream):
        _write_all(err if kind == _STDERR else out, data)


def _output(stream: Stream) -> Iterator[tuple[int, bytes]]:
    """Yield whole frames with the descriptor they are meant for."""
    if not stream.framed:
        data = bytes(stream.received)
        stream.received.clear()
        if data:
            yield 1, data
        return
    while len(stream.received) >= 8:
        kind, size = struct.unpack_from(">BxxxL", stream.received)
        if len(stream.received) < 8 + size:
            return
        data = bytes(stream.received[8 : 8 + size])
        del stream.received[: 8 + size]
        yield kind, data


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def is_terminal() -> bool:
    return os.isatty(0) and os.isatty(1)


@contextmanager
def raw_terminal(resize: Resize) -> Iterator[None]:
    """Pass keys to the bottle unchanged, and follow the window's size."""

    def follow(_number: int = 0, _frame: FrameType | None = None) -> None:
        rows, columns, _, _ = struct.unpack("HHHH", fcntl.ioctl(0, termios.TIOCGWINSZ, b"\0" * 8))
        if rows and columns:
            resize(rows, columns)

    before = termios.tcgetattr(0)
    with _handling({signal.SIGWINCH: follow}):
        try:
            tty.setraw(0, termios.TCSADRAIN)  # keys typed ahead are for the bottle
            follow()
            yield
        finally:
            termios.tcsetattr(0, termios.TCSADRAIN, before)


@contextmanager
def signals_passed_on(send: Callable[[str], None]) -> Iterator[None]:
    """Forward signals for this process to the bottle's first program."""

    def handler(number: int) -> Callable[[int, FrameType | None], None]:
        return lambda _number, _frame: send(signal.Signals(number).name)

    with _handling({number: handler(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}):
        yield


@contextmanager
def _handling(handlers: dict[signal.Signals, Callable[[int, FrameType | None], None]]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
