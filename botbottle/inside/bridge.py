"""Connects loopback ports in a bottle to the sockets of the egress process. Part of the first program.

`init.py` imports this from its own directory. Python 3.8 or newer, standard library only.
"""

from __future__ import annotations

import _socket as socket  # what `socket` wraps: a third of the start-up time and 1 MB less
import errno
import select
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Call = Callable[[int], None]

CHUNK = 65536
CONNECT_SECONDS = 5.0  # the egress process may be restarting
RETRY_SECONDS = 0.05
NOT_NOW = (errno.EAGAIN, errno.ENOENT, errno.ECONNREFUSED, errno.EMFILE, errno.ENFILE, errno.ENOBUFS)
RESET_ON_CLOSE = b"\1\0\0\0\0\0\0\0"  # struct linger {1, 0}


class Loop:
    """Calls a function when a descriptor is ready."""

    def __init__(self) -> None:
        self.poll: select.epoll | select.poll = select.epoll()
        self.unit = 1  # factor from seconds to the unit of `poll`
        self.calls: dict[int, Call | None] = {}
        self.masks: dict[int, int] = {}

    def watch(self, fd: int, mask: int, call: Call | None) -> None:
        """Watch a descriptor. A mask of 0 removes it, since epoll would report a hang-up too early."""
        known = self.masks.get(fd, 0)
        if mask and known:
            self.poll.modify(fd, mask)
        elif mask:
            self.register(fd, mask)
        elif known:
            self.poll.unregister(fd)
        self.masks[fd], self.calls[fd] = mask, call

    def register(self, fd: int, mask: int) -> None:
        try:
            self.poll.register(fd, mask)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            # Another bottle of this account has used up the account's epoll watches. poll() is not counted.
            self.poll, self.unit = select.poll(), 1000
            for each in self.masks:
                if self.masks[each]:
                    self.poll.register(each, self.masks[each])
            self.poll.register(fd, mask)

    def forget(self, fd: int) -> None:
        if self.masks.pop(fd, 0):
            self.poll.unregister(fd)
        self.calls.pop(fd, None)

    def turn(self, seconds: float) -> None:
        for fd, events in self.poll.poll(seconds * self.unit):
            call = self.calls.get(fd)  # an earlier call of this turn may have closed it
            if call is not None:
                call(events)


class End:
    """One socket of a bridged connection. Buffers at most one chunk that it could not send yet."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.peer = self  # until it is joined
        self.pending = b""
        self.ended = False  # it sends no more


class Bridge:
    """Bridges loopback ports to Unix sockets: half-closes are kept, at most a chunk is buffered."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.paused: list[tuple[socket.socket, str]] = []
        self.connecting: list[tuple[float, socket.socket, str]] = []  # until when, accepted, path

    def listen(self, port: int, path: str) -> None:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(1024)
        listener.setblocking(False)
        self.resume(listener, path)

    def resume(self, listener: socket.socket, path: str) -> None:
        self.loop.watch(listener.fileno(), select.EPOLLIN, lambda _: self.accept(listener, path))

    def accept(self, listener: socket.socket, path: str) -> None:
        try:
            fd, _ = listener._accept()  # type: ignore[attr-defined]
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                self.loop.watch(
                    listener.fileno(), 0, None
                )  # else this would be called again at once, for ever
                self.paused.append((listener, path))
            return
        client = socket.socket(fileno=fd)
        client.setblocking(False)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not self.connect(client, path):
            self.connecting.append((time.monotonic() + CONNECT_SECONDS, client, path))

    def connect(self, client: socket.socket, path: str) -> bool:
        """Whether the client is done with: connected, or hopeless and closed."""
        upstream = None
        try:
            upstream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            upstream.setblocking(False)
            upstream.connect(path)
        except OSError as error:
            if upstream is not None:
                upstream.close()
            if error.errno in NOT_NOW:
                return False
            client.close()
            return True
        end = End(client)
        try:
            self.join(end, End(upstream))
        except OSError:  # no more watches: bottles of one operator share a limit
            self.close(end)
        return True

    def tick(self) -> float:
        """Retry what had to wait; returns the seconds after which to call again, or -1."""
        now, waiting = time.monotonic(), self.connecting
        self.connecting = []
        for deadline, client, path in waiting:
            if self.connect(client, path):
                continue
            if now < deadline:
                self.connecting.append((deadline, client, path))
            else:
                client.close()
        paused, self.paused = self.paused, []
        for listener, path in paused:
            try:
                self.resume(listener, path)
            except OSError:
                self.paused.append((listener, path))
        return RETRY_SECONDS if self.connecting or paused else -1

    def join(self, left: End, right: End) -> None:
        left.peer, right.peer = right, left
        self.interest(left)
        self.interest(right)

    def interest(self, end: End) -> None:
        """Read only while the peer can take data; poll for writing only while data is pending."""
        mask = 0 if end.ended or end.peer.pending else select.EPOLLIN
        if end.pending:
            mask |= select.EPOLLOUT
        self.loop.watch(end.sock.fileno(), mask, lambda events: self.ready(end, events))

    def ready(self, end: End, events: int) -> None:
        try:
            if events & select.EPOLLOUT and end.pending:
                self.send(end, end.pending)
            if events & ~select.EPOLLOUT and not end.ended and not end.peer.pending:
                self.receive(end)
            elif events & select.EPOLLERR:
                raise ConnectionResetError
        except BlockingIOError:
            return
        except OSError:
            self.cut(end)
            return
        if end.ended and end.peer.ended and not end.pending and not end.peer.pending:
            self.close(end)
            return
        try:
            self.interest(end)
            self.interest(end.peer)
        except OSError:
            self.cut(end)

    def receive(self, end: End) -> None:
        chunk = end.sock.recv(CHUNK)
        if chunk:
            self.send(end.peer, chunk)
            return
        end.ended = True
        if not end.peer.pending:
            end.peer.sock.shutdown(socket.SHUT_WR)

    def send(self, end: End, chunk: bytes) -> None:
        try:
            sent = end.sock.send(chunk)
        except BlockingIOError:
            sent = 0
        end.pending = chunk[sent:]
        if end.peer.ended and not end.pending:
            end.sock.shutdown(socket.SHUT_WR)

    def cut(self, end: End) -> None:
        """Reset both sides after an error: the peer must not take it for a proper end."""
        for broken in (end, end.peer):
            if broken.sock.family == socket.AF_INET:
                broken.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        self.close(end)

    def close(self, end: End) -> None:
        for done in (end, end.peer):
            self.loop.forget(done.sock.fileno())
            done.sock.close()
