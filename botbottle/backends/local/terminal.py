"""This process's terminal, joined to a bottle's. The operator's own descriptors never enter a bottle.

Output of a bottle reaches the operator's terminal unchanged, as with any program run there.
"""

from __future__ import annotations

import _socket as socket
import contextlib
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType

from botbottle.backends.local.supervisor import CHUNK
from botbottle.backends.local.supervisor_io import resize

DETACH = b"\x10\x11"  # Ctrl-P Ctrl-Q
PASSED = ("TERM", "COLORTERM")
LAST_CHUNKS = 256  # more than the pipes hold


def both() -> bool:
    return os.isatty(0) and os.isatty(1)


def size() -> tuple[int, int]:
    """Rows and columns of this terminal, or the usual defaults."""
    try:
        columns, rows = os.get_terminal_size(1)
    except OSError:
        return 24, 80
    return rows, columns


def variables() -> dict[str, str]:
    """The variables that describe this terminal to programs inside."""
    found = {name: os.environ[name] for name in PASSED if name in os.environ}
    return {"TERM": "xterm-256color"} | found


@contextlib.contextmanager
def raw() -> Iterator[None]:
    """Pass every key unchanged; afterwards the terminal is as before."""
    if not os.isatty(0):
        yield
        return
    import termios  # noqa: PLC0415 - only where there is a terminal
    import tty  # noqa: PLC0415

    before = termios.tcgetattr(0)
    tty.setraw(0, termios.TCSADRAIN)  # keys typed ahead are kept
    try:
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)


@contextlib.contextmanager
def on_resize(act: Callable[[int, int], None]) -> Iterator[None]:
    def handler(_number: int, _frame: FrameType | None) -> None:
        act(*size())

    before = signal.signal(signal.SIGWINCH, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGWINCH, before)


class Stream:
    """Copies bytes from one descriptor to another, a chunk at a time."""

    def __init__(self, source: int, target: int, *, closes: bool = False) -> None:
        self.source, self.target, self.closes = source, target, closes
        self.pending = b""

    def watch(self) -> tuple[int, int] | None:
        if self.pending:
            return self.target, select.POLLOUT
        return (self.source, select.POLLIN) if self.source >= 0 else None

    def move(self) -> None:
        if self.pending:
            try:
                self.pending = self.pending[os.write(self.target, self.pending) :]
            except OSError:
                self.end()
            return
        try:
            self.pending = os.read(self.source, CHUNK)
        except OSError:  # a terminal that was closed
            self.pending = b""
        if not self.pending:
            self.end()

    def end(self) -> None:
        self.pending, self.source = b"", -1
        if self.closes:
            os.close(self.target)
            self.closes = False


def copy(streams: list[Stream], status: int) -> bytes:
    """Copy until `status` yields a message and all output has been written; returns the message.

    The first stream is the one into the bottle.
    """
    while True:
        ready, moves = _ready(streams, None, status)
        for fd in ready:
            if fd != status:
                moves[fd].move()
        if status in ready:
            said = os.read(status, 16)
            break
    for _ in range(LAST_CHUNKS):  # bounded: a background process may print for ever
        waits = any(stream.pending for stream in streams[1:])
        ready, moves = _ready(streams[1:], None if waits else 0)
        if not ready:
            break
        for fd in ready:
            moves[fd].move()
    return said


def _ready(
    streams: list[Stream], wait: int | None, status: int | None = None
) -> tuple[list[int], dict[int, Stream]]:
    poll, moves = select.poll(), {}
    for stream in streams:
        if (watched := stream.watch()) is not None:
            moves[watched[0]] = stream
            poll.register(*watched)
    if status is not None:
        poll.register(status, select.POLLIN)
    return [fd for fd, _ in poll.poll(wait)], moves


def execute(connection: socket.socket, packet: bytes, *, tty: bool) -> bytes:
    """Run a command with a terminal or pipes made for it; returns the message of the status pipe."""
    if tty:
        master, slave = os.openpty()
        resize(master, *size())
        inside, outside = (slave, slave, slave), [os.dup(master), master]
    else:
        (read, into), (out, write), (err, write_err) = os.pipe(), os.pipe(), os.pipe()
        inside, outside = (read, write, write_err), [into, out, err]
    streams = [Stream(0, outside[0], closes=not tty)]
    streams += [Stream(fd, number) for number, fd in enumerate(outside[1:], 1)]
    status = -1
    try:
        status = send_request(connection, packet, inside)
        for fd in set(inside):
            os.close(fd)
        if status < 0:
            return b""
        if not tty:
            return copy(streams, status)
        with raw(), on_resize(lambda rows, columns: resize(outside[0], rows, columns)):
            return copy(streams, status)
    finally:
        for fd in {status, *outside} - {-1}:
            with contextlib.suppress(OSError):  # the input is closed when its source ends
                os.close(fd)


def request(connection: socket.socket, packet: bytes, fds: tuple[int, int, int]) -> bytes:
    """Run a command on these descriptors and wait; returns the message of the status pipe."""
    status = send_request(connection, packet, fds)
    if status < 0:
        return b""
    with open(status, "rb") as file:  # noqa: PTH123
        return file.read(16)


def send_request(connection: socket.socket, packet: bytes, fds: tuple[int, int, int]) -> int:
    """Send a request. Returns the descriptor that yields the exit code, or -1 when it was not accepted."""
    status, inside = os.pipe()
    try:
        send(connection, packet, (*fds, inside))
        accepted = connection.recv(64) == b"k"
    except OSError:
        accepted = False
    os.close(inside)
    if not accepted:
        os.close(status)
    return status if accepted else -1


def send(connection: socket.socket, packet: bytes, fds: tuple[int, ...] = ()) -> None:
    rights = b"".join(fd.to_bytes(4, sys.byteorder) for fd in fds)
    connection.sendmsg([packet], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if fds else [])


def attach(connection: socket.socket) -> bytes | None:
    """Join the bottle's main terminal to this one; returns its last message.

    The message is b"" when the bottle refused, None after a detach.
    """
    rows, columns = size()
    send(connection, b"attach %d %d" % (rows, columns))

    def resized(rows: int, columns: int) -> None:
        send(connection, b"size %d %d" % (rows, columns))

    with raw(), on_resize(resized):
        return _attached(connection)


def _attached(connection: socket.socket) -> bytes | None:
    pending = b""
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    poll.register(0, select.POLLIN)
    while True:
        for fd, _ in poll.poll():
            if fd == 0:
                typed = pending + os.read(0, CHUNK)
                if DETACH in typed:
                    return None
                if typed == pending:
                    poll.unregister(0)  # no more input: watch only
                pending = typed[-1:] if typed.endswith(DETACH[:1]) and typed != pending else b""
                send(connection, b"type " + typed[: len(typed) - len(pending)])
                continue
            packet = connection.recv(CHUNK * 16)
            if not packet.startswith(b"o"):
                return packet
            write_all(packet[1:])


def write_all(chunk: bytes) -> None:
    while chunk:
        chunk = chunk[os.write(1, chunk) :]
