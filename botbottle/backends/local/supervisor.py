"""The parent process of a local bottle, on the host: holds its lock, terminal and log, and serves requests.

Each detached bottle has one, so it is small: it runs under `python -I -S` and imports only supervisor_io.py.
Output of the bottle is copied, never interpreted.
"""

# ruff: noqa: PTH108, PTH123, SIM105
# pathlib and contextlib would cost each bottle another megabyte.
from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # what `signal` and `socket` wrap: 1 MB less
import _socket as socket
import os
import select
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Watch = dict[int, tuple[int, Callable[[], None]]]

if TYPE_CHECKING or __name__ != "__main__":
    from botbottle.backends.local import supervisor_io as io
else:
    sys.path.append(sys.argv[1])  # its own directory, which `-I` leaves out
    import supervisor_io as io

CHUNK = 4096  # what a pipe that is ready takes without blocking
PACKET = 32768
STOP_SECONDS = 10.0
TERMINATING = (signal.SIGTERM, signal.SIGHUP)
HANDLED = (signal.SIGCHLD, signal.SIGINT, signal.SIGWINCH, *TERMINATING)


class StartOptions:
    """The options of a start. The backend makes them and already holds the lock."""

    def __init__(self, run: str, lock: int, argv: list[str], fds: list[int]) -> None:
        self.run, self.lock, self.argv, self.fds = run, lock, argv, fds
        self.control = -1  # our end; the bottle's is among the fds
        self.cgroups: list[str] = []
        self.rlimits: list[tuple[int, int]] = []
        self.processors: list[int] = []  # empty: all
        self.ready = -1  # gets one message once the first program runs
        self.front = False  # in the foreground, on this process's own standard streams
        self.terminal = True
        self.size = (24, 80)

    def arguments(self) -> list[str]:
        """The options as a command line for a detached supervisor."""
        words = [f"run={self.run}", f"lock={self.lock}", f"control={self.control}", f"ready={self.ready}"]
        words += [f"fd={fd}" for fd in self.fds] + [f"cgroup={path}" for path in self.cgroups]
        words += [f"rlimit={kind}:{value}" for kind, value in self.rlimits]
        words += [f"processor={number}" for number in self.processors]
        return [*words, "--", *self.argv]

    @classmethod
    def parse(cls, words: list[str]) -> StartOptions:
        end = words.index("--")
        pairs = [word.partition("=")[::2] for word in words[:end]]
        one = dict(pairs)
        options = cls(one["run"], int(one["lock"]), words[end + 1 :], [int(v) for k, v in pairs if k == "fd"])
        options.control, options.ready = int(one["control"]), int(one["ready"])
        options.cgroups = [value for key, value in pairs if key == "cgroup"]
        limits = [value.split(":") for key, value in pairs if key == "rlimit"]
        options.rlimits = [(int(kind), int(value)) for kind, value in limits]
        options.processors = [int(value) for key, value in pairs if key == "processor"]
        for fd in (options.lock, options.control, options.ready, *options.fds):
            os.set_inheritable(fd, False)
        return options


class SandboxSupervisor:
    def __init__(self, options: StartOptions) -> None:
        self.options = options
        self.control = socket.socket(fileno=options.control)
        self.log = io.Log(options.run)
        self.clients: list[io.Client] = []
        self.sources: list[io.Source] = []
        self.input = -1  # into the bottle
        self.typed = b""  # typed, but not yet written into the bottle
        self.stdin = 0 if options.front else -1
        self.control_read = self.started = False
        self.deadline: float | None = None
        self.code: int | None = None
        self.pid = 0
        self.wake, self.wakeup = os.pipe()
        self.listener = io.listen(options.run)

    # the bottle

    def launch(self) -> None:
        """Start the bottle on a new terminal or on pipes: it never gets a descriptor of the operator's."""
        if self.options.terminal:
            master, slave = os.openpty()
            io.resize(master, *self.options.size)
            os.set_blocking(master, False)
            inside, self.input = (slave, slave, slave), master
            self.sources = [io.Source(master, 1 if self.options.front else -1)]
        else:
            (read, self.input), (out, out_inside), (err, err_inside) = os.pipe(), os.pipe(), os.pipe()
            os.set_blocking(self.input, False)
            inside = (read, out_inside, err_inside)
            self.sources = [io.Source(out, 1), io.Source(err, 2)]
        self.pid = os.fork()
        if self.pid == 0:
            io.exec_sandbox(self.options, inside)
        for fd in {*inside, *self.options.fds}:
            os.close(fd)

    def run(self) -> int:
        """Supervise until the bottle ends; returns its exit code."""
        before = {number: signal.signal(number, lambda *_: None) for number in HANDLED}
        for fd in (self.wake, self.wakeup):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(self.wakeup, warn_on_full_buffer=False)
        try:
            self.launch()
            io.write_state(self.options.run)
            while self.code is None:
                self.turn()
            self.finish()
        finally:
            signal.set_wakeup_fd(-1)
            for number, handler in before.items():
                signal.signal(number, handler)
        return self.code

    def finish(self) -> None:
        """Save the rest of the output, record the end, free everything, then notify clients."""
        self.drain()
        if not self.control_read and select.select([self.control], [], [], 0)[0]:
            self.read_control()  # it started, and ended before we read the message
        assert self.code is not None  # noqa: S101 (that is why we are here)
        try:
            io.write_state(self.options.run, self.code)
        except OSError:  # clients are notified even if the disk is full
            pass
        io.remove_cgroups(self.options.cgroups)
        os.unlink(f"{self.options.run}/{io.SOCKET}")
        os.close(self.options.lock)
        for client in list(self.clients):
            self.send(client, b"x%d" % self.code)
        if not self.started:
            self.notify_starter(b"ended %d" % self.code)
        for source in self.sources:
            while source.pending and source.sink >= 0:
                self.write_output(source)

    def drain(self) -> None:
        deadline = time.monotonic() + 1.0  # no writer is left; bounded all the same
        for source in self.sources:
            while source.fd >= 0 and time.monotonic() < deadline:
                if not select.select([source.fd], [], [], 0)[0]:
                    break
                self.read_output(source)

    # one turn

    def turn(self) -> None:
        watched = self.watched()
        poll = select.poll()
        for fd, (mask, _) in watched.items():
            poll.register(fd, mask)
        wait = None if self.deadline is None else max(0.0, self.deadline - time.monotonic()) * 1000
        for fd, _ in poll.poll(wait):
            watched[fd][1]()
        if self.code is None and self.deadline is not None and time.monotonic() >= self.deadline:
            self.deadline = None
            self.kill()

    def watched(self) -> Watch:
        """The descriptors to poll. Nothing is read that cannot be passed on, so buffers stay small."""
        watch: Watch = {self.wake: (select.POLLIN, self.handle_signals)}
        if len(self.clients) < io.CLIENTS:
            watch[self.listener.fileno()] = (select.POLLIN, self.accept)
        if not self.control_read:
            watch[self.control.fileno()] = (select.POLLIN, self.read_control)
        if self.stdin >= 0 and not self.typed:
            watch[self.stdin] = (select.POLLIN, self.read_stdin)
        for source in self.sources:
            if source.pending:
                watch[source.sink] = (select.POLLOUT, lambda source=source: self.write_output(source))  # type: ignore[misc]
            elif source.fd >= 0:
                watch[source.fd] = (select.POLLIN, lambda source=source: self.read_output(source))  # type: ignore[misc]
        if self.typed and self.input >= 0:
            mask = select.POLLOUT | watch.get(self.input, (0, None))[0]
            watch[self.input] = (mask, self.handle_terminal)
        for client in self.clients:
            mask = (0 if self.typed else select.POLLIN) | (select.POLLOUT if client.pending else 0)
            watch[client.sock.fileno()] = (mask, lambda client=client: self.handle_client(client))  # type: ignore[misc]
        return watch

    def handle_terminal(self) -> None:
        """Write and read the terminal, which is one descriptor for both directions."""
        self.write_input()
        for source in self.sources:
            if source.fd == self.input and not source.pending:
                self.read_output(source)

    def handle_signals(self) -> None:
        for number in os.read(self.wake, 4096):
            if number == signal.SIGCHLD:
                self.reap()
            elif number == signal.SIGWINCH:
                self.resize_terminal()
            elif number == signal.SIGINT and self.options.front:
                try:
                    self.command(b"kill %d" % number)
                except OSError:  # it is ending by itself
                    pass
            else:
                self.stop(STOP_SECONDS)

    def resize_terminal(self) -> None:
        """Follow the size of the operator's terminal."""
        if self.options.front and self.options.terminal:
            try:
                io.resize(self.input, *os.get_terminal_size(1)[::-1])
            except OSError:  # the terminal is gone
                pass

    def reap(self) -> None:
        if self.code is not None:  # a second signal: the process was stopped before it ended
            return
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid:
            self.code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)

    def read_control(self) -> None:
        """Read the only message from inside: the first program runs."""
        self.control_read = True
        try:
            self.started = self.control.recv(64) == b"started"
        except OSError:
            return
        if self.started:
            self.notify_starter(b"started")

    def notify_starter(self, word: bytes) -> None:
        """Notify the process that started us. It may have been killed; the bottle runs on without it."""
        if self.options.ready >= 0:
            try:
                os.write(self.options.ready, word)
            except OSError:
                pass

    def command(self, packet: bytes, fds: list[int] | None = None) -> None:
        """Send a packet to the first program. Raises OSError when it does not listen."""
        rights = memoryview(b"".join(fd.to_bytes(4, sys.byteorder) for fd in fds or []))
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if fds else []
        self.control.sendmsg([packet], ancillary, socket.MSG_DONTWAIT)

    def stop(self, seconds: float) -> None:
        self.deadline = time.monotonic() + seconds
        try:
            self.command(b"kill %d" % signal.SIGTERM)
        except OSError:
            self.deadline = time.monotonic()

    def kill(self) -> None:
        """Kill process 1 first: then bubblewrap ends only after the last process inside."""
        try:
            with open(f"/proc/{self.pid}/task/{self.pid}/children", "rb") as file:
                inside = [int(pid) for pid in file.read().split()]
            for pid in inside or [self.pid]:
                os.kill(pid, signal.SIGKILL)
        except OSError:  # it ended meanwhile; `reap` will see it
            pass

    # streams

    def read_output(self, source: io.Source) -> None:
        try:
            chunk = os.read(source.fd, CHUNK)
        except BlockingIOError:
            return
        except OSError:  # a terminal that is no longer open
            chunk = b""
        if not chunk:
            source.fd = -1
            return
        self.log.write(chunk)
        if source.sink >= 0:
            source.pending += chunk  # more than one chunk only at the end, and no more than a pipe holds
        for client in list(self.clients):
            if client.attached:
                self.send(client, b"o" + chunk)

    def write_output(self, source: io.Source) -> None:
        try:
            source.pending = source.pending[os.write(source.sink, source.pending) :]
        except OSError:  # the reader is gone: the bottle gets a broken pipe, too
            source.pending, source.sink = b"", -1
            if not self.options.terminal:
                os.close(source.fd)
                source.fd = -1

    def read_stdin(self) -> None:
        try:
            self.typed = os.read(self.stdin, CHUNK)
        except OSError:
            self.typed = b""
        if self.typed:
            self.write_input()
            return
        self.stdin = -1
        if self.options.terminal:
            self.stop(STOP_SECONDS)  # the terminal was closed
        else:
            os.close(self.input)
            self.input = -1

    def write_input(self) -> None:
        try:
            self.typed = self.typed[os.write(self.input, self.typed) :]
        except BlockingIOError:
            pass
        except OSError:
            self.typed, self.stdin = b"", -1

    # the socket

    def accept(self) -> None:
        try:
            fd, _ = self.listener._accept()  # type: ignore[attr-defined]
        except OSError:
            return
        client = io.Client(socket.socket(fileno=fd))
        client.sock.setblocking(False)
        self.clients.append(client)

    def send(self, client: io.Client, packet: bytes) -> None:
        try:
            client.send(packet)
        except OSError:
            self.disconnect(client)

    def disconnect(self, client: io.Client) -> None:
        if client in self.clients:
            self.clients.remove(client)
            client.sock.close()

    def handle_client(self, client: io.Client) -> None:
        fds: list[int] = []
        try:
            client.flush()
            data, ancillary, *_ = client.sock.recvmsg(
                PACKET, socket.CMSG_SPACE(16), socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT
            )
            for part in ancillary:
                fds += memoryview(part[2]).cast("i").tolist()
            self.handle_request(client, data, fds)
        except BlockingIOError:
            pass
        except (OSError, ValueError):
            self.disconnect(client)
        finally:
            for fd in fds:
                os.close(fd)

    def handle_request(self, client: io.Client, data: bytes, fds: list[int]) -> None:
        """Handle one packet: typed text, a window size, or a request. Raises OSError, ValueError."""
        kind, _, rest = data.partition(b" ")
        if kind == b"exec" and len(fds) == 4:
            self.command(data, fds)
            client.send(b"k")
        elif kind == b"stop":
            seconds = float(rest)
            if not 0 <= seconds <= 86400:
                raise ValueError
            self.stop(seconds)
        elif kind in (b"attach", b"size") and self.options.terminal:
            rows, columns = (int(number) for number in rest.split())
            io.resize(self.input, rows, columns)
            client.attached = True
            self.command(b"kill %d" % signal.SIGWINCH)  # so that it redraws even if the size is the same
        elif kind == b"type" and client.attached and self.input >= 0:
            self.typed += rest
            self.write_input()
        else:
            self.disconnect(client)


if __name__ == "__main__":
    if os.fork():
        os._exit(0)  # the starter waits only for this
    os.setsid()
    sys.exit(SandboxSupervisor(StartOptions.parse(sys.argv[3:])).run())
