"""Loopback ports in a bottle, connected to the sockets of the egress process. Part of the first program.

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
    """What to call when a descriptor is ready."""

    def __init__(self) -> None:
        self.poll: select.epoll | select.poll = select.epoll()
        self.unit = 1  # of the seconds that it takes
        self.calls: dict[int, Call | None] = {}
        self.masks: dict[int, int] = {}

    def watch(self, fd: int, mask: int, call: Call | None) -> None:
        """A mask of 0 takes the descriptor out: epoll would report a hang-up that nobody may act on yet."""
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
            # Another bottle of this account has used up what epoll may watch for it. poll() is not counted.
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
    """One of the two sockets of a bridged connection. Holds at most one chunk that it could not send yet."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.peer = self  # until it is joined
        self.pending = b""
        self.ended = False  # it sends no more


class Bridge:
    """Loopback ports in, Unix sockets out: bytes as they come, half-closes kept, never more than a chunk."""

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
                self.loop.watch(listener.fileno(), 0, None)  # else it would be called again at once, for ever
                self.paused.append((listener, path))
            return
        client = socket.socket(fileno=fd)
        client.setblocking(False)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not self.connect(client, path):
            self.connecting.append((time.monotonic() + CONNECT_SECONDS, client, path))

    def connect(self, client: socket.socket, path: str) -> bool:
        """Whether the matter is settled: connected, or hopeless and closed."""
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
        except OSError:  # no more can be watched: bottles of one operator share a limit of that
            self.close(end)
        return True

    def tick(self) -> float:
        """Try again what had to wait; returns after how long to call again, or -1."""
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
        """Read only while the other side can take it; wait for room only while something is pending."""
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
        """Broken on one side: the other must not take it for a proper end."""
        for broken in (end, end.peer):
            if broken.sock.family == socket.AF_INET:
                broken.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        self.close(end)

    def close(self, end: End) -> None:
        for done in (end, end.peer):
            self.loop.forget(done.sock.fileno())
            done.sock.close()
