"""The parent of a local bottle, on the host: holds its lock, its terminal, its log and a socket for requests.

Lean, since each detached bottle has one: runs under `python -I -S`, imports nothing of the project. What
comes out of the bottle is copied, never interpreted.
"""

# ruff: noqa: PTH105, PTH106, PTH108, PTH116, PTH123, SIM105
# pathlib and contextlib would cost each bottle another megabyte.
from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # what `signal` and `socket` wrap: 1 MB less
import _socket as socket
import errno
import fcntl
import os
import select
import sys
import termios
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Watch = dict[int, tuple[int, Callable[[], None]]]

CHUNK = 4096  # what a pipe that is ready takes without blocking
PACKET = 32768
LOG_BYTES = 10 * 1024 * 1024  # of each of the two files
CLIENTS = 32
CLIENT_BYTES = 1024 * 1024  # an attached terminal that lags more is let go
STOP_SECONDS = 10.0
DEVICES = (b"/dev/null", b"/dev/zero", b"/dev/full", b"/dev/random", b"/dev/urandom", b"/dev/tty")
CLONE_NEWNS = 0x20000
MS_RDONLY, MS_NOSUID, MS_NOEXEC, MS_REMOUNT, MS_BIND, MS_REC, MS_SLAVE = 1, 2, 8, 32, 4096, 16384, 1 << 19
TERMINATING = (signal.SIGTERM, signal.SIGHUP)
HANDLED = (signal.SIGCHLD, signal.SIGINT, signal.SIGWINCH, *TERMINATING)


class StartOptions:
    """What to start and how; made by local.py, which holds the lock already."""

    def __init__(self, run: str, lock: int, argv: list[str], fds: list[int]) -> None:
        self.run, self.lock, self.argv, self.fds = run, lock, argv, fds
        self.control = -1  # our end; the bottle's is among the fds
        self.cgroups: list[str] = []
        self.rlimits: list[tuple[int, int]] = []
        self.processors: list[int] = []  # empty: all
        self.ready = -1  # told once that the first program runs
        self.front = False  # on this process's own standard streams
        self.terminal = True
        self.size = (24, 80)

    def arguments(self) -> list[str]:
        """For the command line of a keeper of its own."""
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
        order = cls(one["run"], int(one["lock"]), words[end + 1 :], [int(v) for k, v in pairs if k == "fd"])
        order.control, order.ready = int(one["control"]), int(one["ready"])
        order.cgroups = [value for key, value in pairs if key == "cgroup"]
        limits = [value.split(":") for key, value in pairs if key == "rlimit"]
        order.rlimits = [(int(kind), int(value)) for kind, value in limits]
        order.processors = [int(value) for key, value in pairs if key == "processor"]
        for fd in (order.lock, order.control, order.ready, *order.fds):
            os.set_inheritable(fd, False)
        return order


class Log:
    """What the main command printed: two files, so that the last 10 MB at least are there."""

    def __init__(self, run: str) -> None:
        self.path = f"{run}/log"
        self.fd = self.open()
        self.written = os.fstat(self.fd).st_size

    def open(self) -> int:
        return os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, chunk: bytes) -> None:
        if self.written + len(chunk) > LOG_BYTES:
            os.close(self.fd)
            os.replace(self.path, f"{self.path}.1")
            self.fd, self.written = self.open(), 0
        try:
            self.written += os.write(self.fd, chunk)
        except OSError:  # a full disk must not stop the bottle
            pass


class Source:
    """One stream out of the bottle, and where it goes beside the log."""

    def __init__(self, fd: int, sink: int) -> None:
        self.fd, self.sink = fd, sink  # -1: ended; nowhere
        self.pending = b""


class Client:
    """Somebody on the socket: one request, or an attached terminal."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.attached = self.stopping = False
        self.pending: list[bytes] = []

    def tell(self, packet: bytes) -> None:
        self.pending.append(packet)
        self.flush()

    def flush(self) -> None:
        """Raises OSError when it is gone, or lags too much."""
        while self.pending:
            try:
                self.sock.send(self.pending[0])
            except BlockingIOError:
                if sum(map(len, self.pending)) > CLIENT_BYTES:
                    raise ConnectionAbortedError from None
                return
            del self.pending[0]


class SandboxSupervisor:
    def __init__(self, order: StartOptions) -> None:
        self.order = order
        self.control = socket.socket(fileno=order.control)
        self.log = Log(order.run)
        self.clients: list[Client] = []
        self.sources: list[Source] = []
        self.input = -1  # into the bottle
        self.typed = b""  # not taken by it yet
        self.stdin = 0 if order.front else -1
        self.heard = self.started = False
        self.deadline: float | None = None
        self.code: int | None = None
        self.pid = 0
        self.wake, self.wakeup = os.pipe()
        self.listener = listen(order.run)

    # the bottle

    def launch(self) -> None:
        """Start it on a terminal of its own, or on pipes: never on a descriptor of the operator's."""
        if self.order.terminal:
            master, slave = os.openpty()
            resize(master, *self.order.size)
            os.set_blocking(master, False)
            inside, self.input = (slave, slave, slave), master
            self.sources = [Source(master, 1 if self.order.front else -1)]
        else:
            (read, self.input), (out, out_inside), (err, err_inside) = os.pipe(), os.pipe(), os.pipe()
            os.set_blocking(self.input, False)
            inside = (read, out_inside, err_inside)
            self.sources = [Source(out, 1), Source(err, 2)]
        self.pid = os.fork()
        if self.pid == 0:
            become(self.order, inside)
        for fd in {*inside, *self.order.fds}:
            os.close(fd)

    def keep(self) -> int:
        """Until the bottle ends; its exit code."""
        before = {number: signal.signal(number, lambda *_: None) for number in HANDLED}
        for fd in (self.wake, self.wakeup):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(self.wakeup, warn_on_full_buffer=False)
        try:
            self.launch()
            write_state(self.order.run)
            while self.code is None:
                self.turn()
            self.finish()
        finally:
            signal.set_wakeup_fd(-1)
            for number, handler in before.items():
                signal.signal(number, handler)
        return self.code

    def finish(self) -> None:
        """It has ended: keep what is left of its output, say so, free everything, then tell who waits."""
        self.drain()
        if not self.heard and select.select([self.control], [], [], 0)[0]:
            self.hear()  # it had begun, and ended before we got to know of it
        assert self.code is not None  # noqa: S101 (that is why we are here)
        try:
            write_state(self.order.run, self.code)
        except OSError:  # a full disk must not keep the end from being told
            pass
        remove_cgroups(self.order.cgroups)
        os.unlink(f"{self.order.run}/keeper.sock")
        os.close(self.order.lock)
        for client in list(self.clients):
            self.tell(client, b"x%d" % self.code)
        if not self.started:
            self.report(b"ended %d" % self.code)
        for source in self.sources:
            while source.pending and source.sink >= 0:
                self.show(source)

    def drain(self) -> None:
        deadline = time.monotonic() + 1.0  # nobody is left to write; a bound all the same
        for source in self.sources:
            while source.fd >= 0 and time.monotonic() < deadline:
                if not select.select([source.fd], [], [], 0)[0]:
                    break
                self.read(source)

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
        """Nothing is read that cannot be passed on: what waits in here stays small."""
        watch: Watch = {self.wake: (select.POLLIN, self.signalled)}
        if len(self.clients) < CLIENTS:
            watch[self.listener.fileno()] = (select.POLLIN, self.accept)
        if not self.heard:
            watch[self.control.fileno()] = (select.POLLIN, self.hear)
        if self.stdin >= 0 and not self.typed:
            watch[self.stdin] = (select.POLLIN, self.type)
        for source in self.sources:
            if source.pending:
                watch[source.sink] = (select.POLLOUT, lambda source=source: self.show(source))  # type: ignore[misc]
            elif source.fd >= 0:
                watch[source.fd] = (select.POLLIN, lambda source=source: self.read(source))  # type: ignore[misc]
        if self.typed and self.input >= 0:
            mask = select.POLLOUT | watch.get(self.input, (0, None))[0]
            watch[self.input] = (mask, self.both_ways)
        for client in self.clients:
            mask = (0 if self.typed else select.POLLIN) | (select.POLLOUT if client.pending else 0)
            watch[client.sock.fileno()] = (mask, lambda client=client: self.serve(client))  # type: ignore[misc]
        return watch

    def both_ways(self) -> None:
        """A terminal is one descriptor for what goes in and what comes out."""
        self.feed()
        for source in self.sources:
            if source.fd == self.input and not source.pending:
                self.read(source)

    def signalled(self) -> None:
        for number in os.read(self.wake, 4096):
            if number == signal.SIGCHLD:
                self.reap()
            elif number == signal.SIGWINCH:
                self.fit()
            elif number == signal.SIGINT and self.order.front:
                try:
                    self.command(b"kill %d" % number)
                except OSError:  # it ends just now, by itself
                    pass
            else:
                self.stop(STOP_SECONDS)

    def fit(self) -> None:
        """As large as the operator's terminal is now."""
        if self.order.front and self.order.terminal:
            try:
                resize(self.input, *os.get_terminal_size(1)[::-1])
            except OSError:  # the terminal is gone
                pass

    def reap(self) -> None:
        if self.code is not None:  # one signal for its end, another for having been stopped before
            return
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid:
            self.code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)

    def hear(self) -> None:
        """The one thing ever read from inside: that the first program runs."""
        self.heard = True
        try:
            self.started = self.control.recv(64) == b"started"
        except OSError:
            return
        if self.started:
            self.report(b"started")

    def report(self, word: bytes) -> None:
        """To whoever started us, and may have been killed meanwhile: the bottle goes on without."""
        if self.order.ready >= 0:
            try:
                os.write(self.order.ready, word)
            except OSError:
                pass

    def command(self, packet: bytes, fds: list[int] | None = None) -> None:
        """To the program inside. Raises OSError when it does not listen."""
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
        """Process 1 first: bubblewrap then ends when the last process inside is gone, not before."""
        try:
            with open(f"/proc/{self.pid}/task/{self.pid}/children", "rb") as file:
                inside = [int(pid) for pid in file.read().split()]
            for pid in inside or [self.pid]:
                os.kill(pid, signal.SIGKILL)
        except OSError:  # it ended meanwhile: that will be told
            pass

    # streams

    def read(self, source: Source) -> None:
        try:
            chunk = os.read(source.fd, CHUNK)
        except BlockingIOError:
            return
        except OSError:  # a terminal nobody has open any more
            chunk = b""
        if not chunk:
            source.fd = -1
            return
        self.log.write(chunk)
        if source.sink >= 0:
            source.pending += chunk  # more than one only at the very end, and no more than a pipe holds
        for client in list(self.clients):
            if client.attached:
                self.tell(client, b"o" + chunk)

    def show(self, source: Source) -> None:
        try:
            source.pending = source.pending[os.write(source.sink, source.pending) :]
        except OSError:  # nobody reads it any more: the bottle learns it by a broken pipe of its own
            source.pending, source.sink = b"", -1
            if not self.order.terminal:
                os.close(source.fd)
                source.fd = -1

    def type(self) -> None:
        try:
            self.typed = os.read(self.stdin, CHUNK)
        except OSError:
            self.typed = b""
        if self.typed:
            self.feed()
            return
        self.stdin = -1
        if self.order.terminal:
            self.stop(STOP_SECONDS)  # the terminal was closed
        else:
            os.close(self.input)
            self.input = -1

    def feed(self) -> None:
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
        client = Client(socket.socket(fileno=fd))
        client.sock.setblocking(False)
        self.clients.append(client)

    def tell(self, client: Client, packet: bytes) -> None:
        try:
            client.tell(packet)
        except OSError:
            self.leave(client)

    def leave(self, client: Client) -> None:
        if client in self.clients:
            self.clients.remove(client)
            client.sock.close()

    def serve(self, client: Client) -> None:
        fds: list[int] = []
        try:
            client.flush()
            data, ancillary, *_ = client.sock.recvmsg(
                PACKET, socket.CMSG_SPACE(16), socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT
            )
            for part in ancillary:
                fds += memoryview(part[2]).cast("i").tolist()
            self.answer(client, data, fds)
        except BlockingIOError:
            pass
        except (OSError, ValueError):
            self.leave(client)
        finally:
            for fd in fds:
                os.close(fd)

    def answer(self, client: Client, data: bytes, fds: list[int]) -> None:
        """One packet: typed text, a window's size, or a request. Raises OSError, ValueError."""
        kind, _, rest = data.partition(b" ")
        if kind == b"exec" and len(fds) == 4:
            self.command(data, fds)
            client.tell(b"k")
        elif kind == b"stop":
            seconds = float(rest)
            if not 0 <= seconds <= 86400:
                raise ValueError
            self.stop(seconds)
        elif kind in (b"attach", b"size") and self.order.terminal:
            rows, columns = (int(number) for number in rest.split())
            resize(self.input, rows, columns)
            client.attached = True
            self.command(
                b"kill %d" % signal.SIGWINCH
            )  # so that it draws itself, also when the size is the same
        elif kind == b"type" and client.attached and self.input >= 0:
            self.typed += rest
            self.feed()
        else:
            self.leave(client)


def become(order: StartOptions, inside: tuple[int, int, int]) -> None:
    """In the child: within the limits, on its own streams, in a session of its own, the sandbox."""
    try:
        signal.set_wakeup_fd(-1)
        for path in order.cgroups:
            with open(f"{path}/cgroup.procs", "w") as file:
                file.write("0")
        if order.processors:
            os.sched_setaffinity(0, order.processors)
        if order.rlimits:
            lower_limits(order.rlimits)
        if os.geteuid() == 0:
            protect_devices()
        os.setsid()
        for number, fd in enumerate(inside):
            os.dup2(fd, number)
        for fd in order.fds:
            os.set_inheritable(fd, True)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.execv(order.argv[0], ["bwrap", *order.argv[1:]])  # noqa: S606
    except BaseException as error:
        os.write(2, os.fsencode(f"bot-bottle: {order.argv[0]} cannot be started: {error}\n"))
    finally:
        os._exit(125)


def lower_limits(wanted: list[tuple[int, int]]) -> None:
    """Of this process and all it starts; what is lower already stays so."""
    import resource  # noqa: PLC0415 (only here)

    for kind, value in wanted:
        soft, hard = resource.getrlimit(kind)
        most = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (most if soft == resource.RLIM_INFINITY else min(soft, most), most))


def protect_devices() -> None:
    """Where the operator is root, the agent owns /dev/null and could change its mode for the whole host.

    So in a mount namespace of our own these become read-only: they can still be written to, not changed.
    bubblewrap then passes them on like that. Raises OSError.
    """
    import _ctypes  # noqa: PLC0415 (the public module takes ten times as long to import)

    libc = _ctypes.dlopen(None, os.RTLD_NOW)  # type: ignore[arg-type]

    def call(name: str, *arguments: object) -> None:
        if _ctypes.call_function(_ctypes.dlsym(libc, name), arguments):
            raise OSError(
                f"{name} is refused to this root account, which could not keep the agent from changing "
                "devices of the host: run bot-bottle as an ordinary user"
            )

    call("unshare", CLONE_NEWNS)
    call("mount", b"none", b"/", None, MS_REC | MS_SLAVE, None)
    for device in DEVICES:
        call("mount", device, device, None, MS_BIND, None)
        call("mount", None, device, None, MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NOEXEC, None)


def listen(run: str) -> socket.socket:
    """The socket for requests, private. Its path may be longer than an address can be."""
    directory = os.open(run, os.O_PATH | os.O_DIRECTORY)
    path = f"/proc/self/fd/{directory}/keeper.sock"
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    mask = os.umask(0o177)
    try:
        listener.bind(path)
    finally:
        os.umask(mask)
        os.close(directory)
    listener.listen(CLIENTS)
    listener.setblocking(False)
    return listener


def resize(terminal: int, rows: int, columns: int) -> None:
    sizes = (min(max(rows, 1), 9999), min(max(columns, 1), 9999), 0, 0)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, b"".join(size.to_bytes(2, sys.byteorder) for size in sizes))


def ticks(pid: int) -> int:
    """When a process started, by the kernel's count: with its pid that names it for good."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[19])


def write_state(run: str, code: int | None = None) -> None:
    """What is known of the run, for whoever asks later; the lock alone says whether it lives."""
    started = os.stat(f"{run}/keeper.sock").st_mtime
    known = f'"pid": {os.getpid()}, "ticks": {ticks(os.getpid())}, "started_at": {started:.3f}'
    with open(f"{run}/state.json.new", "w") as file:
        file.write(f'{{{known}, "exit_code": {"null" if code is None else code}}}\n')
    os.replace(f"{run}/state.json.new", f"{run}/state.json")


def remove_cgroups(paths: list[str], attempts: int = 100) -> None:
    """Also right after the end, when the kernel has not put the last process away yet; with those below."""
    below = [inner for path in paths for inner in _groups_below(path)]
    for path in below + paths:
        for _ in range(attempts):
            try:
                os.rmdir(path)
            except OSError as error:
                if error.errno != errno.EBUSY:
                    break
                time.sleep(0.01)


def _groups_below(path: str) -> list[str]:
    try:
        return [entry.path for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


if __name__ == "__main__":
    if os.fork():
        os._exit(0)  # whoever started us has waited for enough
    os.setsid()
    sys.exit(SandboxSupervisor(StartOptions.parse(sys.argv[2:])).keep())
