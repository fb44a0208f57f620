"""Parts of a local bottle's supervisor: its log, its clients, and the child that becomes the sandbox.

Loaded beside supervisor.py without the project: standard library only, and as little of it as possible.
"""

# ruff: noqa: PTH105, PTH106, PTH108, PTH116, PTH123, SIM105
# pathlib and contextlib would cost each bottle another megabyte.
from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # what `signal` and `socket` wrap: 1 MB less
import _socket as socket
import errno
import fcntl
import os
import sys
import termios
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from botbottle.backends.local.supervisor import StartOptions

SOCKET = "supervisor.sock"
LOG_BYTES = 10 * 1024 * 1024  # of each of the two files
CLIENTS = 32
CLIENT_BYTES = 1024 * 1024  # an attached terminal that lags further behind is disconnected
DEVICES = (b"/dev/null", b"/dev/zero", b"/dev/full", b"/dev/random", b"/dev/urandom", b"/dev/tty")
CLONE_NEWNS = 0x20000
MS_RDONLY, MS_NOSUID, MS_NOEXEC, MS_REMOUNT, MS_BIND, MS_REC, MS_SLAVE = 1, 2, 8, 32, 4096, 16384, 1 << 19


class Log:
    """The output of the main command in two files, so that at least the last 10 MB are there."""

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
    """A stream out of the bottle, and the descriptor it goes to beside the log."""

    def __init__(self, fd: int, sink: int) -> None:
        self.fd, self.sink = fd, sink  # -1: ended; nowhere
        self.pending = b""


class Client:
    """A connection to the socket: one request, or an attached terminal."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.attached = self.stopping = False
        self.pending: list[bytes] = []

    def send(self, packet: bytes) -> None:
        self.pending.append(packet)
        self.flush()

    def flush(self) -> None:
        """Send what is pending. Raises OSError when the client is gone or lags too far behind."""
        while self.pending:
            try:
                self.sock.send(self.pending[0])
            except BlockingIOError:
                if sum(map(len, self.pending)) > CLIENT_BYTES:
                    raise ConnectionAbortedError from None
                return
            del self.pending[0]


def exec_sandbox(options: StartOptions, inside: tuple[int, int, int]) -> None:
    """Become the sandbox, in the child: apply limits, set the streams, start a session."""
    try:
        signal.set_wakeup_fd(-1)
        for path in options.cgroups:
            with open(f"{path}/cgroup.procs", "w") as file:
                file.write("0")
        if options.processors:
            os.sched_setaffinity(0, options.processors)
        if options.rlimits:
            lower_limits(options.rlimits)
        if os.geteuid() == 0:
            protect_devices()
        os.setsid()
        for number, fd in enumerate(inside):
            os.dup2(fd, number)
        for fd in options.fds:
            os.set_inheritable(fd, True)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.execv(options.argv[0], ["bwrap", *options.argv[1:]])  # noqa: S606
    except BaseException as error:
        os.write(2, os.fsencode(f"bot-bottle: {options.argv[0]} cannot be started: {error}\n"))
    finally:
        os._exit(125)


def lower_limits(wanted: list[tuple[int, int]]) -> None:
    """Lower the limits of this process and its children; lower ones stay."""
    import resource  # noqa: PLC0415 (only here)

    for kind, value in wanted:
        soft, hard = resource.getrlimit(kind)
        most = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (most if soft == resource.RLIM_INFINITY else min(soft, most), most))


def protect_devices() -> None:
    """Protect devices: where the operator is root, the agent owns /dev/null and could change its mode.

    In a mount namespace of our own the devices become read-only: they can be written to, not changed.
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
    """Open the private socket for requests. Its path may be longer than an address can be."""
    directory = os.open(run, os.O_PATH | os.O_DIRECTORY)
    path = f"/proc/self/fd/{directory}/{SOCKET}"
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
    """The kernel's start time of a process: with its pid, it identifies the process for good."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[19])


def write_state(run: str, code: int | None = None) -> None:
    """Record the state of the run. Only the lock says whether the bottle lives."""
    started = os.stat(f"{run}/{SOCKET}").st_mtime
    known = f'"pid": {os.getpid()}, "ticks": {ticks(os.getpid())}, "started_at": {started:.3f}'
    with open(f"{run}/state.json.new", "w") as file:
        file.write(f'{{{known}, "exit_code": {"null" if code is None else code}}}\n')
    os.replace(f"{run}/state.json.new", f"{run}/state.json")


def remove_cgroups(paths: list[str], attempts: int = 100) -> None:
    """Remove groups with those below, also while the kernel still removes the last process."""
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
