"""The first program of every bottle: bridges two loopback ports to the sockets, starts the agent, reaps.

Runs inside, beside a hostile agent, as `python3 -I -S init.py` (3.8 or newer). It has nothing that the agent
does not have as well, and the host believes nothing from it but an exit code.
"""

# ruff: noqa: PTH120, PTH123, PTH208, SIM105, PLC0415
# pathlib and contextlib take longer to import than this whole program takes to start.
from __future__ import annotations

# The underscored modules are what `signal` and `socket` wrap: a third of the start-up time and 1 MB less.
import _signal as signal  # type: ignore[import-not-found]
import _socket as socket
import os
import select
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from botbottle.inside.bridge import Bridge, Loop

SOCKETS = "/run/bot-bottle/sockets"
PROXY_PORT, AGENT_PORT = 9101, 9100
PACKET = 65536
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGWINCH)
PR_SET_DUMPABLE = 4
NOT_FOUND, NOT_EXECUTABLE, BROKEN = 127, 126, 125


class Init:
    """Process 1: starts the main command and later ones, and reports their ends."""

    def __init__(self, loop: Loop, variables: bytes | None, control: socket.socket | None) -> None:
        self.loop, self.variables, self.control = loop, variables, control
        self.main = 0
        self.code: int | None = None
        self.statuses: dict[int, int] = {}  # pid → where its exit code goes
        self.wake, wakeup = os.pipe()
        for fd in (self.wake, wakeup):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, *FORWARDED):
            signal.signal(number, lambda *_: None)
        loop.watch(self.wake, select.EPOLLIN, self.signalled)
        if control is not None:
            loop.watch(control.fileno(), select.EPOLLIN, self.asked)

    def start(self, argv: list[str]) -> None:
        """Start the main command, and notify the supervisor once it runs."""
        if argv:
            read, write = os.pipe()
            terminal = os.isatty(0)
            if terminal:
                release_terminal()
            self.main = os.fork()
            if self.main == 0:
                become(argv, self.variables, terminal=terminal, failed=write)
            os.close(write)
            failed = os.read(read, 1)  # ends when the command is executed: the pipe closes by itself
            os.close(read)
            if failed:
                return
        if self.control is not None:
            self.control.send(b"started")

    def signalled(self, _: int) -> None:
        for number in os.read(self.wake, 4096):
            if number == signal.SIGCHLD:
                self.reap()
            else:
                self.forward(number)

    def forward(self, number: int) -> None:
        if self.code is not None:
            return  # it has just ended: another process may have its id
        if self.main:
            os.kill(self.main, number)
        elif number != signal.SIGWINCH:
            self.code = 0  # idle, and asked to end

    def reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
            if pid == self.main:
                self.code = code
            elif pid in self.statuses:
                self.report(pid, code)

    def report(self, pid: int, code: int) -> None:
        fd = self.statuses.pop(pid)
        self.loop.forget(fd)
        try:
            os.write(fd, b"%d" % code)
        except OSError:  # the caller is gone
            pass
        os.close(fd)

    def asked(self, _: int) -> None:
        """Obey the supervisor: `kill N`, or `exec JSON` with descriptors for three streams and the code."""
        assert self.control is not None  # noqa: S101 (it is what called)
        fds: list[int] = []
        received = self.control.recvmsg(PACKET, socket.CMSG_SPACE(16), socket.MSG_CMSG_CLOEXEC)
        for part in received[1]:
            fds += memoryview(part[2]).cast("i").tolist()
        data = received[0]
        kind, rest = data[:4], data[5:]
        if kind == b"exec" and len(fds) == 4:
            self.execute(rest, fds)
        elif kind == b"kill":
            self.forward(int(rest))
        elif not data:
            self.code = 128 + signal.SIGKILL  # the supervisor is gone
        for fd in fds:
            os.close(fd)

    def execute(self, request: bytes, fds: list[int]) -> None:
        """Fork for a command. A failure is reported to the caller: the agent may have used up a limit."""
        try:
            pid = os.fork()
        except OSError as error:
            refuse(fds, error)
            return
        if pid == 0:
            execute(request, fds, self.variables)
        status = self.statuses[pid] = fds.pop()  # closed by `report`
        try:
            self.loop.watch(status, select.EPOLLERR, lambda _: self.hang_up(pid))
        except OSError:  # no more watches: then the caller's hang-up goes unnoticed
            pass

    def hang_up(self, pid: int) -> None:
        """Send SIGHUP: the caller has gone away, as when a terminal is closed."""
        self.loop.forget(self.statuses[pid])
        try:
            os.killpg(pid, signal.SIGHUP)
        except OSError:
            pass


def release_terminal() -> None:
    """Give up the terminal, so that the command's session can have it; Ctrl-C then reaches only that."""
    import fcntl
    import termios

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        fcntl.ioctl(0, termios.TIOCNOTTY)
    except OSError:  # it was not our controlling terminal
        pass
    signal.signal(signal.SIGHUP, before)


def refuse(fds: list[int], error: OSError) -> None:
    """Report an error on the caller's descriptors. (They are new, so that writing does not block.)"""
    reason = f"bot-bottle: cannot be started: {error.strerror}. A limit of this bottle is used up.\n"
    for fd, text in ((fds[2], os.fsencode(reason)), (fds[3], b"%d" % NOT_EXECUTABLE)):
        try:
            os.write(fd, text)
        except OSError:  # the caller is gone
            pass


def execute(request: bytes, fds: list[int], variables: bytes | None) -> None:
    """Run a requested command on the descriptors that came with it. Called in the child."""
    code = BROKEN
    try:
        import json

        wanted = json.loads(request)
        for number, fd in enumerate(fds[:3]):
            os.dup2(fd, number)
        extra = wanted.get("env") or {}
        own = [sys.executable, "-I", "-S"] if wanted.get("own") else []  # a program for our interpreter
        become(
            own + wanted["argv"], variables, cwd=wanted.get("cwd"), terminal=wanted.get("tty"), extra=extra
        )
    except BaseException as error:  # never fall back into the parent's loop
        say(f"cannot be executed: {error}")
    finally:
        os._exit(code)


def become(
    argv: list[str],
    variables: bytes | None,
    *,
    cwd: str | None = None,
    terminal: bool = False,
    extra: dict[str, str] | None = None,
    failed: int | None = None,
) -> None:
    """Turn this child into the command, in a new session; does not return."""
    code = BROKEN
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these, a program expects them
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        if terminal:
            import fcntl
            import termios

            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        code = replace(argv, variables, cwd, extra)
    except BaseException as error:
        say(f"cannot be started: {error}")
    finally:
        if failed is not None:
            os.write(failed, b"!")
        os._exit(code)


def replace(
    argv: list[str], variables: bytes | None, cwd: str | None = None, extra: dict[str, str] | None = None
) -> int:
    """Execute the command with these variables and no others; returns an exit code when that fails."""
    environment = dict(os.environ) if variables is None else parse(variables)
    environment.update(extra or {})
    program = cwd or argv[0]
    try:
        if cwd:
            os.chdir(cwd)
        program = argv[0]
        os.execvpe(program, argv, environment)  # noqa: S606
    except (FileNotFoundError, NotADirectoryError):
        where = "" if "/" in program else f", in PATH={environment.get('PATH', os.defpath)}"
        say(f"{program}: not found in this bottle{where}")
        return NOT_FOUND
    except OSError as error:
        say(f"{program}: cannot be executed: {error.strerror}")
        return NOT_EXECUTABLE


def parse(variables: bytes) -> dict[str, str]:
    """Parse JSON {name: value}, or NAME=value each ended by a NUL, which is faster and needs no module."""
    if variables[:1] == b"{":
        import json

        parsed: dict[str, str] = json.loads(variables)
        return parsed
    pairs = (item.partition(b"=") for item in variables.split(b"\0") if item)
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


def say(sentence: str) -> None:
    os.write(2, os.fsencode(f"bot-bottle: {sentence}\n"))


def guard_memory() -> None:
    """Keep the agent, which has our uid, from tracing us and taking our descriptors."""
    try:
        import _ctypes  # the public module takes ten times as long to import
    except ImportError:  # an interpreter without it; the host does not trust us either way
        return
    this = _ctypes.dlopen(None, os.RTLD_NOW)  # type: ignore[arg-type]
    prctl = _ctypes.dlsym(this, "prctl")
    _ctypes.call_function(prctl, (PR_SET_DUMPABLE, 0, 0, 0, 0))


def limit_processes(count: int) -> None:
    """Limit processes where no control group does. In a user namespace, only its own count (Linux 5.14)."""
    import resource

    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    most = count if hard == resource.RLIM_INFINITY else min(count, hard)
    resource.setrlimit(resource.RLIMIT_NPROC, (most, most))


def shed(keep: set[int]) -> None:
    """Close descriptors that were inherited by accident; our own are not inheritable."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in keep:
            try:
                os.close(int(name))
            except OSError:  # the listing's own
                pass
    for fd in keep:
        os.set_inheritable(fd, False)


def options(arguments: list[str]) -> tuple[str, dict[str, str], list[str]]:
    """Parse our command line into (mode, options, command)."""
    mode = "init"
    if arguments[:1] == ["exec"]:
        mode, arguments = "exec", arguments[1:]
    found: dict[str, str] = {}
    while arguments and arguments[0] != "--":
        name, arguments = arguments[0], arguments[1:]
        if name == "--no-supervise":
            found[name] = ""
        elif name in ("--env-file", "--env-fd", "--control-fd", "--pids") and arguments:
            found[name], arguments = arguments[0], arguments[1:]
        else:
            raise SystemExit(
                "usage: init.py [exec] [--env-file PATH | --env-fd N] [--control-fd N] [--pids N] "
                "[--no-supervise] -- COMMAND…"
            )
    return mode, found, arguments[1:]


def read_variables(found: dict[str, str]) -> bytes | None:
    """The raw bytes; None means that the command inherits our variables."""
    if "--env-file" in found:
        with open(found["--env-file"], "rb") as file:
            return file.read()
    if "--env-fd" in found:
        with open(int(found["--env-fd"]), "rb") as file:
            return file.read()
    return None


def serve(found: dict[str, str], variables: bytes | None, argv: list[str]) -> int:
    try:
        bridge, init = set_up(found, variables)
        if "--pids" in found:
            limit_processes(int(found["--pids"]))
        init.start(argv)
    except (OSError, ImportError) as error:
        say(f"the bridge cannot start: {error}")
        return BROKEN
    while init.code is None:
        init.loop.turn(bridge.tick())
    return init.code


def set_up(found: dict[str, str], variables: bytes | None) -> tuple[Bridge, Init]:
    control = socket.socket(fileno=int(found["--control-fd"])) if "--control-fd" in found else None
    sys.path.append(os.path.dirname(__file__))  # which `-I` leaves out
    from bridge import Bridge, Loop  # type: ignore[import-not-found]

    loop = Loop()
    bridge = Bridge(loop)
    bridge.listen(PROXY_PORT, SOCKETS + "/proxy.sock")
    if "--no-supervise" not in found:
        bridge.listen(AGENT_PORT, SOCKETS + "/agent.sock")
    return bridge, Init(loop, variables, control)


def main() -> int:
    mode, found, argv = options(sys.argv[1:])
    shed({int(found[name]) for name in ("--env-fd", "--control-fd") if name in found})
    variables = read_variables(found)
    if mode == "exec":
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        return replace(argv, variables)
    guard_memory()
    return serve(found, variables, argv)


if __name__ == "__main__":
    os._exit(main())
