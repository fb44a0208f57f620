"""The first program of a bottle, for real: its bridge, its exit codes, its signals, its orphans."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from botbottle.backends.local import bubblewrap
from botbottle.core.interpreter import host_interpreter
from tests.support.requirements import require
from tests.support.timeouts import PATIENCE

pytestmark = pytest.mark.process

BOX = ("bwrap", "--unshare-user", "--unshare-net", "--unshare-pid", "--as-pid-1", "--die-with-parent")
VIEW = ("--dev-bind", "/", "/", "--proc", "/proc", "--tmpfs", "/run")
SH = ("sh", "-c")

TRANSFER = """
import hashlib, os, socket, sys, threading
port, count, size = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
chunk = os.urandom(1 << 16)
def one():
    connection = socket.create_connection(("127.0.0.1", port))
    sent, got = hashlib.sha256(), hashlib.sha256()
    def send():
        for _ in range(size >> 16):
            connection.sendall(chunk); sent.update(chunk)
        connection.shutdown(socket.SHUT_WR)
    sender = threading.Thread(target=send); sender.start()
    while data := connection.recv(1 << 16):
        got.update(data)
    sender.join()
    results.append(sent.digest() == got.digest())
results = []
threads = [threading.Thread(target=one) for _ in range(count)]
[thread.start() for thread in threads]; [thread.join() for thread in threads]
print(sum(results))
"""


@pytest.fixture(autouse=True)
def _bubblewrap() -> None:
    require(shutil.which("bwrap"), "bubblewrap", "apt-get install bubblewrap")


@pytest.fixture
def command(home: Path) -> Callable[..., list[str]]:
    def make(*arguments: str, program: Path = bubblewrap.INIT) -> list[str]:
        (home / "sockets").mkdir(exist_ok=True)
        sockets = ("--bind", str(home / "sockets"), "/run/bot-bottle/sockets")
        python = (host_interpreter(), "-I", "-S", str(program))
        return [*BOX, *VIEW, *sockets, *python, *arguments]

    return make


@pytest.fixture
def init(command) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
        chosen = {"capture_output": True, "text": True, "timeout": 120, "stdin": subprocess.DEVNULL}
        return subprocess.run(command(*arguments), check=False, **chosen | options)

    return run


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("true",), 0),
        ((*SH, "exit 42"), 42),
        ((*SH, "kill -9 $$"), 137),
        ((*SH, "kill $$"), 143),
        (("no-such-program",), 127),
        (("/no/such/program",), 127),
        (("/etc/passwd",), 126),
    ],
)
def test_it_ends_with_the_commands_code(init, arguments, code):
    done = init("--", *arguments)
    assert done.returncode == code
    assert ("bot-bottle: " in done.stderr) == (code in {126, 127})


@pytest.mark.parametrize("form", ["json", "nul"])
@pytest.mark.parametrize("mode", [(), ("exec",)])
def test_variables_come_by_file_and_nothing_else_is_inherited(init, home, form, mode):
    values = {"NAME": "välue=\n2", "EMPTY": ""}
    text = json.dumps(values) if form == "json" else "".join(f"{k}={v}\0" for k, v in values.items())
    (home / "env").write_text(text)
    done = init(*mode, "--env-file", str(home / "env"), "--", "/usr/bin/env", "-0")
    assert dict(item.split("=", 1) for item in done.stdout.split("\0") if item) == values


def test_the_command_gets_no_descriptor_and_no_ignored_signal(init):
    extra = os.open("/etc/passwd", os.O_RDONLY)
    try:
        done = init("--", *SH, "ls /proc/self/fd; grep SigIgn /proc/self/status", pass_fds=[extra])
    finally:
        os.close(extra)
    *listed, _, ignored = done.stdout.split()
    assert listed == ["0", "1", "2", "3"]  # 3: the listing's own
    ours = sum(1 << number - 1 for number in (signal.SIGPIPE, signal.SIGXFSZ))  # others are the tester's
    assert int(ignored, 16) & ours == 0


def test_the_bridge_leads_each_port_to_its_socket(init, serve, home):
    serve(home / "sockets")
    ask = (
        "import urllib.request as r\nfor p in (9101, 9100): print(r.urlopen(f'http://127.0.0.1:{p}/').read())"
    )
    assert init("--", sys.executable, "-c", ask).stdout == "b'this is proxy'\nb'this is agent'\n"


def test_without_supervise_there_is_no_agent_port(init, serve, home):
    serve(home / "sockets")
    ask = "import socket\nprint([socket.socket().connect_ex(('127.0.0.1', p)) for p in (9101, 9100)])"
    assert init("--no-supervise", "--", sys.executable, "-c", ask).stdout == "[0, 111]\n"


@pytest.mark.parametrize(("count", "size"), [(200, 1 << 18), (1, 50 << 20), (8, 8 << 20)])
def test_what_goes_through_the_bridge_is_byte_exact(init, serve, home, count, size):
    serve(home / "sockets")
    done = init("--", sys.executable, "-c", TRANSFER, "9101", str(count), str(size))
    assert (done.stdout, done.stderr) == (f"{count}\n", "")


FULL = """
class Full:
    def __init__(self):
        self.real, self.left = EPOLL(), {left}
    def register(self, fd, mask):
        if not self.left:
            raise OSError(errno.ENOSPC, "full")
        self.left -= 1
        self.real.register(fd, mask)
    def __getattr__(self, name):
        return getattr(self.real, name)


EPOLL, select.epoll = select.epoll, Full


class Loop:"""


@pytest.mark.parametrize("left", [0, 20])
def test_it_goes_on_without_epoll_when_others_have_used_it_up(command, serve, home, left):
    serve(home / "sockets")
    program = changed(home, "class Loop:", FULL.format(left=left))
    words = command("--", sys.executable, "-c", TRANSFER, "9101", "30", str(1 << 20), program=program)
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.stdout, done.stderr) == ("30\n", "")


def test_it_holds_back_a_sender_that_nobody_reads(init, serve, home):
    serve(home / "sockets")
    script = """
import socket
c = socket.create_connection(("127.0.0.1", 9101)); c.settimeout(1)
sent = 0
try:
    while True: sent += c.send(b"x" * 65536)
except TimeoutError: pass
rss = next(int(l.split()[1]) for l in open("/proc/1/status") if l.startswith("VmRSS"))
print(sent < 40 << 20, rss < 16 << 10)
"""
    assert init("--", sys.executable, "-c", script).stdout == "True True\n"


def test_it_waits_for_a_socket_that_is_not_there_yet(command, serve, home):
    script = f'echo ready; exec {sys.executable} -c "{TRANSFER.replace(chr(34), chr(39))}" 9101 3 65536'
    process = subprocess.Popen(command("--", *SH, script), stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout.readline() == "ready\n"
        serve(home / "sockets")
        assert process.stdout.read() == "3\n"


def test_it_gives_up_on_a_socket_that_never_comes(command, home):
    hurried = changed(home, "CONNECT_SECONDS = 5.0", "CONNECT_SECONDS = 0.2")
    ask = "import socket; c = socket.create_connection(('127.0.0.1', 9101)); print(c.recv(1))"
    words = command("--", sys.executable, "-c", ask, program=hurried)
    assert subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout == "b''\n"


def test_a_broken_connection_is_not_taken_for_a_proper_end(init, home):
    import socket
    import threading

    (home / "sockets").mkdir()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(home / "sockets" / "proxy.sock"))
    listener.listen()

    def reset() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.send(b"half of it")
            # Closed with something unread: that is a reset.
            connection.recv(1)

    thread = threading.Thread(target=reset)
    thread.start()
    script = """
import socket
c = socket.create_connection(("127.0.0.1", 9101)); c.sendall(b"some request")
try:
    while c.recv(100): pass
    print("ended")
except ConnectionResetError: print("reset")
"""
    done = init("--", sys.executable, "-c", script)
    thread.join()
    listener.close()
    assert done.stdout == "reset\n"


def test_it_lives_through_more_connections_than_it_has_descriptors(init, serve, home):
    serve(home / "sockets")
    script = f"ulimit -n 64; exec {' '.join(command_words())} -- {sys.executable} -c '{MANY}'"
    done = subprocess.run(
        [*BOX, *VIEW, "--bind", str(home / "sockets"), "/run/bot-bottle/sockets", *SH, script],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stdout == "40\n", done.stderr


MANY = """
import socket
held = [socket.create_connection(("127.0.0.1", 9101)) for _ in range(40)]
answered = 0
for connection in held:
    connection.sendall(b"GET"); answered += b"proxy" in connection.recv(99); connection.close()
print(answered)
"""


def command_words() -> list[str]:
    return [host_interpreter(), "-I", "-S", str(bubblewrap.INIT)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_go_to_the_command(home, number):
    """Outside of a sandbox, so that the test can send them; the ports are then the host's, hence others."""
    program = changed(home, "PORT = 9101, 9100", "PORT = 0, 0")
    name = number.name.removeprefix("SIG")
    script = f"trap 'echo got {name}; exit 9' {name}; echo ready; while :; do sleep 0.05; done"
    words = [host_interpreter(), "-I", "-S", str(program), "--", *SH, script]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert process.stdout.read() == f"got {name}\n"
    assert process.returncode == 9


def test_it_reaps_what_the_command_leaves_behind(init):
    orphan = "(sh -c 'echo $$' &)"
    script = f"""
        set -- $( {orphan}; {orphan} )  # which ends when both have
        for pid; do while test -e /proc/$pid; do sleep 0.02; done; done
        echo $# are gone
    """
    assert init("--", *SH, script).stdout == "2 are gone\n"


def test_without_a_command_it_stays_until_it_is_asked_to_end(home):
    program = changed(home, "PORT = 9101, 9100", "PORT = 0, 0")
    ours, theirs = socket_pair()
    words = [host_interpreter(), "-I", "-S", str(program), "--control-fd", str(theirs.fileno()), "--"]
    with ours, theirs, subprocess.Popen(words, pass_fds=[theirs.fileno()]) as process:
        assert ours.recv(64) == b"started"
        ours.send(b"kill 28")
        ours.send(b"kill 15")
        assert process.wait(PATIENCE) == 0


FORK = """
import os, signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
made = 0
try:
    while made < 100:
        if os.fork() == 0: signal.pause()
        made += 1
except BlockingIOError: pass
print(made)
"""


def test_a_limit_of_processes_counts_those_of_the_bottle_and_no_others(home):
    """As an account other than root, for which it would not hold."""
    python = "/usr/bin/python3"
    require(os.access(python, os.X_OK), "a python3 for every account", "apt-get install python3")
    account = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
    program = shutil.copy(bubblewrap.INIT, home / "init.py")
    shutil.copy(bubblewrap.BRIDGE, home / "bridge.py")
    (home / "sockets").mkdir()
    home.chmod(0o755)
    words = [*BOX, *VIEW, "--bind", str(home / "sockets"), "/run/bot-bottle/sockets", python, "-I", "-S"]
    words += [str(program), "--pids", "20", "--", python, "-c", FORK]
    others = [subprocess.Popen(["sleep", "1000"], **account) for _ in range(30)]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False, **account)
    finally:
        for other in others:
            other.kill()
            other.wait()
    assert (done.stdout, done.stderr) == ("18\n", "")  # beside the first program and the one that forks


def test_what_cannot_be_forked_is_told_to_whoever_asked_and_nobody_else_suffers(home):
    broken = "def no_fork(): raise BlockingIOError(11, 'too many')\nos.fork = no_fork\n\n\nclass Init:"
    program = changed(home, "class Init:", broken)
    program.write_text(program.read_text().replace("PORT = 9101, 9100", "PORT = 0, 0"))
    ours, theirs = socket_pair()
    words = [host_interpreter(), "-I", "-S", str(program), "--control-fd", str(theirs.fileno()), "--"]
    with ours, theirs, subprocess.Popen(words, pass_fds=[theirs.fileno()]) as process:
        assert ours.recv(64) == b"started"
        for _ in range(2):
            said, status = asked_to_execute(ours, "true")
            assert (said, status) == (
                b"bot-bottle: cannot be started: too many. A limit of this bottle is used up.\n",
                b"126",
            )
        ours.send(b"kill 15")
        assert process.wait(PATIENCE) == 0


def asked_to_execute(control, *argv: str) -> tuple[bytes, bytes]:
    """What came on standard error and as the exit code."""
    import array
    import socket

    (err, err_inside), (status, status_inside) = os.pipe(), os.pipe()
    null = os.open("/dev/null", os.O_RDWR)
    given = array.array("i", [null, null, err_inside, status_inside])
    packet = b"exec " + json.dumps({"argv": argv}).encode()
    control.sendmsg([packet], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, given)])
    for fd in given:
        if fd != null:
            os.close(fd)
    os.close(null)
    with os.fdopen(err, "rb") as said, os.fdopen(status, "rb") as code:
        return said.read(), code.read()


def changed(home: Path, old: str, new: str) -> Path:
    """A copy of the program, which is two files, with the one occurrence of `old` changed."""
    texts = {source.name: source.read_text() for source in (bubblewrap.INIT, bubblewrap.BRIDGE)}
    assert sum(text.count(old) for text in texts.values()) == 1
    for name, text in texts.items():
        (home / name).write_text(text.replace(old, new))
    return home / "init.py"


def socket_pair():
    import socket

    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
