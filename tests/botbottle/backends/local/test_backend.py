"""The local backend, for real: what gets in, what gets out, and what is true after any process dies."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import pty
import re
import resource
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from botbottle.backends import quotas
from botbottle.backends.base import NotRunning, Unavailable
from botbottle.backends.local import backend as local
from botbottle.backends.local import bubblewrap, cgroups, run_dir
from botbottle.core.interpreter import host_interpreter
from botbottle.core.plan_types import BackendError, File, Limits, Mount, Plan, Variable
from botbottle.launch import plan_cache
from egress.contract.secret_variables import FILE, from_bytes
from tests.botbottle.conftest import listening_on_the_host
from tests.support import PROGRAMS
from tests.support.requirements import require
from tests.support.timeouts import PATIENCE, wait_until

pytestmark = pytest.mark.process

SH = ("sh", "-c")
IDLE = ("sleep", "1000")


@pytest.fixture
def backend(home: Path) -> Iterator[local.LocalBackend]:
    require(shutil.which("bwrap"), "bubblewrap", "apt-get install bubblewrap")
    backend = local.LocalBackend(home)
    yield backend
    for directory in home.glob("bottles/*"):
        backend.remove(directory.name)
    assert cgroups.leftovers(backend.tag) == []


@pytest.fixture
def started(backend: local.LocalBackend, plan_of: Callable[..., Plan]) -> Callable[..., Plan]:
    def start(*command: str, **changes: object) -> Plan:
        plan = plan_of(*command, **changes)
        backend.start(plan, said.append)
        return plan

    said: list[str] = []
    start.said = said
    return start


@pytest.fixture
def drive(home: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """A verb in a process of its own."""

    def words(verb: str, subject: Plan | str, *rest: str) -> list[str]:
        if isinstance(subject, Plan):
            (home / "plan.json").write_text(plan_cache.to_json(subject))
            subject = str(home / "plan.json")
        return [sys.executable, str(PROGRAMS / "local_backend.py"), str(home), verb, subject, *rest]

    def run(verb: str, subject: Plan | str, *rest: str, **options) -> subprocess.CompletedProcess[str]:
        chosen = {"capture_output": True, "text": True, "timeout": 60} | options
        return subprocess.run(words(verb, subject, *rest), check=False, **chosen)

    run.words = words
    return run


class Terminal:
    """An operator in front of a terminal on which a program runs."""

    def __init__(self, words: list[str]) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ["TERM"] = "vt220"
            os.execv(words[0], words)
        self.seen = ""

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def until(self, text: str, seconds: float = PATIENCE) -> str:
        deadline = time.monotonic() + seconds
        while text not in self.seen:
            assert time.monotonic() < deadline, self.seen
            if select.select([self.fd], [], [], 0.2)[0]:
                try:
                    self.seen += os.read(self.fd, 4096).decode("utf-8", "replace")
                except OSError as error:
                    assert error.errno == errno.EIO
                    assert text in self.seen, self.seen
        return self.seen

    def end(self) -> int:
        """The exit code. What is still printed is read, so that nothing waits for it."""
        deadline = time.monotonic() + PATIENCE
        while True:
            if select.select([self.fd], [], [], 0.05)[0]:
                with contextlib.suppress(OSError):
                    self.seen += os.read(self.fd, 4096).decode("utf-8", "replace")
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                os.close(self.fd)
                return os.waitstatus_to_exitcode(status)
            assert time.monotonic() < deadline, self.seen


def parts(backend: local.LocalBackend) -> dict[str, int]:
    """The processes of the one bottle that runs: supervisor, bubblewrap, the first program inside."""
    supervisor = backend.life("demo").pid
    assert supervisor is not None
    found = {"supervisor": supervisor}
    found["bwrap"] = child_of(supervisor)
    found["init"] = child_of(found["bwrap"])
    return found


def child_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def gone(pid: int) -> bool:
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True


def eventually(check: Callable[[], object]) -> object:
    return wait_until(check)


# what gets out: nothing


def test_from_inside_only_the_two_sockets_answer(started, plan_of, drive, serve, home):
    other = started(*IDLE, slug="other")
    serve(Path(other.directory) / "sockets")
    plan = plan_of()
    serve(Path(plan.directory) / "sockets")
    shutil.copy(PROGRAMS / "escape.py", Path(plan.directory) / "workspace")
    abstract = f"bot-bottle-{os.getpid()}"
    with listening_on_the_host() as host, socket.socket(socket.AF_UNIX) as hidden:
        hidden.bind(f"\0{abstract}")
        hidden.listen()
        given = {
            **host,
            "addresses": own_addresses(),
            "sockets": [
                *host["sockets"],
                f"{other.directory}/sockets/proxy.sock",
                f"{plan.directory}/sockets/proxy.sock",
                f"{other.directory}/run/supervisor.sock",
                f"{plan.directory}/run/supervisor.sock",
            ],
            "abstract": [abstract],
            "hidden": [str(home), plan.directory, f"{plan.directory}/ca-key.pem", "/sys", *at_home()],
            "pids": [os.getpid(), local.LocalBackend(home).life("other").pid],
        }
        words = ("/usr/bin/python3", "/workspace/escape.py", json.dumps(given))
        done = drive("run", plan_of(*words))
    result = json.loads(done.stdout)
    assert result["open"] == {}
    assert len(result["refused"]) > 60
    assert result["refused"]["vsock"] == result["refused"]["packet socket"] == "EAFNOSUPPORT"
    assert "this is proxy" in result["answers"]["9101"]
    assert "this is agent" in result["answers"]["9100"]
    assert result["facts"] == {
        "CapEff": "0" * 16, "CapPrm": "0" * 16, "CapBnd": "0" * 16, "CapAmb": "0" * 16, "NoNewPrivs": "1",
        "Seccomp": "2", "descriptors": [0, 1, 2], "interfaces": ["lo"], "uid": 1000, "gid": 1000,
    }  # fmt: skip


def at_home() -> list[str]:
    """What stands in the operator's home, but for what leads to the interpreter."""
    return [str(path) for path in Path.home().iterdir() if path not in Path(host_interpreter()).parents]


def own_addresses() -> list[str]:
    """Where the host could be reached from a network, if there were one."""
    found = subprocess.run(["hostname", "-I"], capture_output=True, text=True, check=False).stdout.split()
    return [address for address in found if ":" not in address] or ["127.0.1.1"]


def test_no_secret_stands_on_a_command_line_or_in_a_file_but_the_proxys(started, backend, monkeypatch, home):
    monkeypatch.setenv("HOST_TOKEN", "s3cr3t-by-env")
    (home / "token").write_text("s3cr3t-by-file\n")
    secrets = {"A": Variable(from_env="HOST_TOKEN"), "B": Variable(from_file=str(home / "token"))}
    plan = started(*SH, 'echo "$A $B"; exec sleep 1000', variables={"PATH": Variable("/usr/bin")} | secrets)
    printed = eventually(lambda: b"".join(backend.logs("demo", follow=False)))
    assert printed == b"s3cr3t-by-env s3cr3t-by-file\r\n"
    for pid in parts(backend).values():
        assert b"s3cr3t" not in Path(f"/proc/{pid}/cmdline").read_bytes()
        assert b"s3cr3t" not in Path(f"/proc/{pid}/environ").read_bytes()
    for path in (Path(plan.directory) / "run").iterdir():
        named = path.name in ("log", FILE)
        assert named or not path.is_file() or b"s3cr3t" not in path.read_bytes()
    told = Path(plan.directory) / "run" / FILE
    assert from_bytes(told.read_bytes()) == {"s3cr3t-by-env", "s3cr3t-by-file"}
    assert told.stat().st_mode & 0o777 == 0o600
    assert not [mount for mount in plan.mounts if told.is_relative_to(mount.source)]


HANDED = {"PATH": Variable("/usr/bin:/bin"), "A": Variable(from_env="HOST_TOKEN")}


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_what_it_was_handed_is_forgotten_when_it_ends(started, backend, monkeypatch, end):
    monkeypatch.setenv("HOST_TOKEN", "s3cr3t-by-env")
    told = Path(started(*IDLE, variables=HANDED).directory) / "run" / FILE
    backend.tidy("demo")
    assert told.exists(), "it lives"
    if end == "stop":
        backend.stop("demo")
    else:
        os.kill(parts(backend)["supervisor"], signal.SIGKILL)
        eventually(lambda: not backend.life("demo").alive)
        backend.tidy("demo")
    assert not told.exists()


def test_a_run_has_told_the_proxy_when_its_command_begins_and_leaves_nothing(
    plan_of, drive, monkeypatch, home
):
    monkeypatch.setenv("HOST_TOKEN", "s3cr3t-by-env")
    plan = plan_of(*SH, "echo ready; read line", variables=HANDED)
    told = Path(plan.directory) / "run" / FILE
    with subprocess.Popen(
        drive.words("run", plan), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout.readline() == "ready\n"
        assert from_bytes(told.read_bytes()) == {"s3cr3t-by-env"}
        run.communicate("go on\n", timeout=60)
    assert not told.exists()


def test_nothing_starts_that_the_proxy_cannot_be_told_of(started, backend, monkeypatch, home):
    monkeypatch.setenv("HOST_TOKEN", "s3cr3t-by-env")
    (home / "bottles" / "demo" / "run" / f"{FILE}.lock").mkdir(parents=True)
    with pytest.raises(BackendError, match="The proxy cannot be told"):
        started(*IDLE, variables=HANDED)
    assert not backend.life("demo").alive


def test_a_missing_secret_stops_the_start_before_anything_runs(started, backend):
    with pytest.raises(BackendError, match="NO_SUCH_VARIABLE"):
        started(*IDLE, variables={"A": Variable(from_env="NO_SUCH_VARIABLE")})
    assert not backend.life("demo").alive


@pytest.mark.parametrize("where", ["stdin", "stdout"])
def test_a_file_of_the_operators_never_enters(plan_of, drive, home, where):
    """Given as standard input it could be opened again for writing, through /proc."""
    (home / "file").write_text("mine")
    script = "ls -l /proc/self/fd/0 /proc/self/fd/1 >&2; echo x >/proc/self/fd/0; true"
    with (home / "file").open("r+") as file:
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
        done = drive("run", plan_of(*SH, script), capture_output=False, **streams | {where: file})
    assert str(home) not in done.stderr
    assert (home / "file").read_text() == "mine"


@pytest.mark.parametrize("path", ["/workspace/CLAUDE.md", "/etc/bot-bottle/ca/x"])
def test_files_are_not_put_below_a_mount(started, path):
    with pytest.raises(BackendError, match="inside of the mount"):
        started(*IDLE, files=(File(path, "x"),))


def test_an_images_links_do_not_lead_out_of_it(backend, plan_of, home):
    image = home / "image"
    (image / "etc").mkdir(parents=True)
    (image / "etc" / "leak").symlink_to("/etc/shadow")
    (image / "opt").symlink_to("/root")
    (image / "etc" / "plain").write_text("text")
    box = bubblewrap.Box()
    bubblewrap.fill(box, plan_of(image=str(image)))
    box.close()
    text = " ".join(box.arguments)
    assert "--symlink /etc/shadow /etc/leak" in text
    assert "--symlink /root /opt" in text
    assert backend.read(str(image), "/etc/leak") is None
    assert backend.read(str(image), "/opt/.profile") is None
    assert backend.read(str(image), "/etc/plain") == "text"
    assert backend.read("", "/etc/passwd") is None


@pytest.fixture
def linked(home) -> Path:
    """An image with links out of it in many places, which an agent's Dockerfile may have made."""
    image = home / "image"
    for name in ("data", "etc", "var"):
        (image / name).mkdir(parents=True)
    for name in ("opt", "data/inner", "data/file", "etc/conf", "var/lib"):
        (image / name).symlink_to(f"/oldroot{home}/victim")
    return image


@pytest.mark.parametrize(
    "target", ["/opt", "/opt/planted", "/opt/a/b", "/data/inner/planted", "/data/file", "/etc/conf/planted"]
)
def test_nothing_is_put_where_a_link_of_the_image_leads(started, plan_of, linked, home, target):
    """Bubblewrap would follow it on the host, and make there what is missing."""
    (home / "victim").mkdir()
    mounts = (*plan_of().mounts, Mount(str(home), target))
    with pytest.raises(BackendError, match=f"{target} leads over a link of the image"):
        started(*IDLE, image=str(linked), mounts=mounts)
    with pytest.raises(BackendError, match=f"{target} leads over a link of the image"):
        started(*IDLE, image=str(linked), files=(File(target, "x"),))
    assert list((home / "victim").iterdir()) == []


def test_an_image_without_python_is_refused_and_holds_nothing(started, backend, linked):
    with pytest.raises(BackendError, match="has no python3"):
        started(*IDLE, image=str(linked))
    assert not backend.life("demo").alive


@pytest.mark.parametrize("target", ["/mnt/new", "/data", "/data/plain", "/var/lib/x", "/etc/bot-bottle/x"])
def test_other_places_of_an_image_with_links_can_be_had(linked, plan_of, home, target):
    box = bubblewrap.Box()
    bubblewrap.fill(box, plan_of(image=str(linked), mounts=(Mount(str(home), target),)))
    box.close()
    assert " ".join(box.arguments).endswith(f"--ro-bind {home} {target} --remount-ro / --chdir /workspace")


# what gets in


def test_it_sees_its_files_mounts_user_and_name(plan_of, drive, home):
    (home / "extra").mkdir()
    (home / "extra" / "given").write_text("from the host")
    plan = plan_of(
        *SH,
        "cat ~/.config/x.json /mnt/extra/given /etc/ssl/certs/ca-certificates.crt; whoami; hostname; pwd;"
        "stat -c %a ~/.config/x.json; getent hosts localhost; echo new >/workspace/new",
    )
    plan = plan_cache.from_json(plan_cache.to_json(plan))
    mounts = (*plan.mounts, Mount(str(home / "extra"), "/mnt/extra"))
    files = (File("/home/agent/.config/x.json", "{}\n", 0o600),)
    done = drive("run", plan_of(*plan.command, mounts=mounts, files=files))
    lines = done.stdout.splitlines()
    assert lines[:6] == ["{}", "from the hostthe bundle", "agent", "demo", "/workspace", "600"]
    assert (Path(plan.directory) / "workspace" / "new").read_text() == "new\n"


def test_a_mount_that_is_not_there_is_named(started, home):
    with pytest.raises(BackendError, match=re.escape(f"{home}/gone")):
        started(*IDLE, mounts=(Mount(f"{home}/gone", "/mnt/gone"),))


def test_a_long_home_works(drive, plan_of, home):
    deep = home / ("x" * 100)
    deep.mkdir()
    backend = local.LocalBackend(deep)
    plan = plan_of(*IDLE)
    backend.start(Plan("demo", "local", str(deep), command=IDLE, mounts=plan.mounts), print)
    assert backend.life("demo").alive
    backend.stop("demo")
    assert not backend.life("demo").alive


# in the foreground


@pytest.mark.parametrize(
    ("script", "code"),
    [("exit 0", 0), ("exit 42", 42), ("kill -9 $$", 137), ("kill $$", 143), ("no-such-program", 127)],
)
def test_run_ends_with_the_agents_code(plan_of, drive, backend, script, code):
    assert drive("run", plan_of(*SH, script)).returncode == code
    assert backend.life("demo").exit_code == code


def test_run_passes_all_three_streams(plan_of, drive, backend):
    text = "line\n" * 50_000
    done = drive("run", plan_of(*SH, "cat; echo problem >&2"), input=text)
    assert (done.stdout, done.stderr) == (text, "problem\n")
    assert b"problem" in b"".join(backend.logs("demo", follow=False))


def test_run_of_a_missing_program_says_so(plan_of, drive):
    done = drive("run", plan_of("no-such-program"))
    assert (done.returncode, "not found in this bottle" in done.stderr) == (127, True)


def test_run_ends_when_its_reader_does(plan_of, drive):
    with subprocess.Popen(drive.words("run", plan_of("yes")), stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"y\n"
        process.stdout.close()
        assert process.wait(PATIENCE) == 128 + signal.SIGPIPE


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 9), (signal.SIGINT, 9), (signal.SIGHUP, 9)])
def test_signals_to_run_reach_the_agent(plan_of, drive, number, code):
    plan = plan_of(*SH, "trap 'exit 9' TERM INT; echo ready; while :; do sleep 0.05; done")
    with subprocess.Popen(drive.words("run", plan), stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(number)
        assert process.wait(PATIENCE) == code


def test_run_on_a_terminal(plan_of, drive):
    script = (
        "echo $TERM; test -t 0 && test -t 1 && test -t 2 && echo terminal; read line; echo got $line; cat"
    )
    operator = Terminal(drive.words("run", plan_of(*SH, script)))
    operator.until("terminal")
    assert "vt220" in operator.seen
    operator.type("hello\r")
    operator.until("got hello")
    operator.type("again\r")
    operator.until("again\r\nagain")  # so cat is there: a shell that just starts one may swallow an interrupt
    operator.type("\x03")  # Ctrl-C: for the agent, not for us
    assert operator.end() == 130


def test_a_bottle_runs_once(started, plan_of, drive):
    started(*IDLE)
    done = drive("run", plan_of("true"))
    assert (done.returncode, "already running" in done.stderr) == (98, True)


# in the background


def test_start_keeps_the_output_and_the_code(started, backend):
    started(*SH, "echo one; sleep 0.2; echo two; exit 5")
    assert b"".join(backend.logs("demo", follow=True)) == b"one\r\ntwo\r\n"
    assert not backend.life("demo").alive
    assert backend.life("demo").exit_code == 5


def test_start_of_a_missing_program_is_an_error(started, backend):
    with pytest.raises(BackendError, match=r"demo ended at once \(127\).*no-such-program"):
        started("no-such-program")
    assert not backend.life("demo").alive


def test_an_idle_bottle_waits_for_commands(started, backend, drive):
    started()
    assert drive("exec", "demo", "hostname").stdout == "demo\n"
    backend.stop("demo")
    assert backend.life("demo").exit_code == 0


def test_the_log_is_bounded_and_its_end_is_kept(started, backend, home):
    started(*SH, "yes 0123456789012345678901234567890123456789 | head -c 25000000; echo the end")
    total = 0
    for chunk in backend.logs("demo", follow=True):
        total += len(chunk)
    assert total > 5_000_000
    kept = b"".join(backend.logs("demo", follow=False))
    assert 10_000_000 < len(kept) <= 20 * 1024 * 1024
    assert kept.endswith(b"the end\r\n")


def test_what_is_executed_has_streams_variables_a_terminal_and_a_code(started, drive):
    started(*IDLE, variables={"PATH": Variable("/usr/bin:/bin"), "A": Variable("b")})
    done = drive("exec", "demo", *SH, "cat; echo problem >&2; exit 7", input="text" * 100_000)
    assert (done.stdout, done.stderr, done.returncode) == ("text" * 100_000, "problem\n", 7)
    for words, code in (("no-such",), 127), ((*SH, "kill -9 $$"), 137):
        assert drive("exec", "demo", *words).returncode == code
    done = drive("exec", "demo", *SH, "echo $A; ls /proc/self/fd | xargs")
    assert done.stdout == "b\n0 1 2 3\n", "the variables, and no descriptors"
    operator = Terminal(
        drive.words("exec-tty", "demo", *SH, "tty -s && echo $TERM; read x; echo got $x; exit 3")
    )
    operator.until("vt220")
    operator.type("typed\r")
    operator.until("got typed")
    assert operator.end() == 3
    # Last, since it stays: exec returns although something goes on in the background.
    done = drive("exec", "demo", *SH, "(while :; do echo noise; done) & echo started")
    assert done.stdout.startswith(("started", "noise"))


def test_what_was_executed_hangs_up_when_the_operator_goes(started, drive, backend, home):
    plan = started(*IDLE)
    flag = Path(plan.directory) / "workspace" / "hung-up"
    trap = "exec 2>/dev/null; trap 'echo >/workspace/hung-up; exit' HUP"  # a shell reports what was hung up
    script = f"{trap}; echo ready; while :; do sleep 0.05; done"
    with subprocess.Popen(drive.words("exec", "demo", *SH, script), stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"ready\n"
        process.kill()
    eventually(flag.exists)


def test_attach_shows_types_and_leaves(started, drive, backend):
    started(*SH, "while read line; do echo got $line; done")
    operator = Terminal(drive.words("attach", "demo"))
    operator.type("one\r")
    operator.until("got one")
    operator.type("\x10\x11")
    assert operator.end() == 0
    assert backend.life("demo").alive
    again = Terminal(drive.words("attach", "demo"))
    again.type("two\r")
    again.until("got two")
    again.type("\x04")
    assert again.end() == 0
    assert backend.life("demo").exit_code == 0


def test_an_attached_terminal_that_reads_nothing_does_not_stop_the_bottle(started, backend, home):
    started(*SH, "yes | head -c 8000000; echo the end; exec sleep 1000")
    connection = backend._connect("demo")
    connection.send(b"attach 24 80")
    eventually(lambda: run_dir.tail(home / "bottles/demo/run").endswith("the end"))
    connection.close()


BAD_REQUESTS = [
    b"", b"nonsense", b"stop x", b"stop nan", b"stop -1", b"size 1", b"attach a b", b"type x", b"exec {}",
]  # fmt: skip


def test_a_bad_request_leaves_the_bottle_alone(started, backend, drive):
    started(*IDLE)
    for packet in BAD_REQUESTS:
        with contextlib.closing(backend._connect("demo")) as connection:
            connection.settimeout(PATIENCE)
            connection.send(packet)
            assert not packet or connection.recv(64) == b"", packet
        assert backend.life("demo").alive, packet
    assert drive("exec", "demo", "true").returncode == 0


def test_copy_in_files_and_trees(started, backend, drive, home):
    started(*IDLE)
    (home / "tree" / "sub").mkdir(parents=True)
    (home / "tree" / "sub" / "file").write_text("content")
    (home / "tree" / "link").symlink_to("/etc/shadow")
    backend.copy_in("demo", home / "tree", "/home/agent/copy")
    backend.copy_in("demo", home / "tree" / "sub" / "file", "/tmp")
    done = drive(
        "exec", "demo", *SH, "cat ~/copy/sub/file /tmp/file; readlink ~/copy/link; stat -c %U ~/copy/sub"
    )
    assert done.stdout == "contentcontent/etc/shadow\nagent\n"
    with pytest.raises(BackendError, match="Read-only"):
        backend.copy_in("demo", home / "tree", "/usr/tree")


@pytest.mark.parametrize("verb", ["exec", "attach", "copy"])
def test_a_bottle_that_does_not_run_says_so(backend, plan_of, verb, home):
    plan_of()
    acts = {
        "exec": lambda: backend.exec("demo", ["true"], tty=False),
        "attach": lambda: backend.attach("demo"),
        "copy": lambda: backend.copy_in("demo", home, "/tmp"),
    }
    with pytest.raises(NotRunning, match="bottle start demo"):
        acts[verb]()


# the end


def test_stop_asks_first(started, backend):
    started(*SH, "trap 'echo asked; exit 4' TERM; echo ready; while :; do sleep 0.05; done")
    eventually(lambda: b"ready" in b"".join(backend.logs("demo", follow=False)))
    backend.stop("demo")
    assert backend.life("demo").exit_code == 4


def test_stop_kills_what_does_not_listen(started, backend):
    started(*SH, "trap '' TERM; echo ready; while :; do sleep 0.05; done")
    eventually(lambda: b"ready" in b"".join(backend.logs("demo", follow=False)))
    pids = parts(backend)
    backend.stop("demo", seconds=0.1)
    assert gone(pids["init"])
    assert gone(pids["bwrap"])
    eventually(lambda: gone(pids["supervisor"]))
    assert backend.life("demo").exit_code == 137
    backend.stop("demo")  # nothing to do is fine


def test_stop_ends_a_supervisor_that_is_stuck(started, backend):
    started(*IDLE)
    pids = parts(backend)
    os.kill(pids["supervisor"], signal.SIGSTOP)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "GRACE_SECONDS", 0.2)
        backend.stop("demo", seconds=0.1)
    eventually(lambda: all(gone(pid) for pid in pids.values()))


@pytest.mark.parametrize("victim", ["supervisor", "bwrap", "init"])
def test_after_kill_9_of_any_part_nothing_is_left(started, backend, victim):
    started(*SH, "sleep 1000 & sleep 1000 & wait", limits=Limits(memory=512 << 20, pids=100, cpus=1))
    pids = parts(backend)
    pids["agent"] = child_of(pids["init"])
    os.kill(pids[victim], signal.SIGKILL)
    eventually(lambda: not backend.life("demo").alive)
    eventually(lambda: all(gone(pid) for pid in pids.values()))
    assert backend.life("demo").exit_code == (None if victim == "supervisor" else 137)
    backend.stop("demo")
    assert cgroups.leftovers(backend.tag) == []
    assert backend.orphans([]) == []


def test_what_a_killed_supervisor_left_is_put_away_when_somebody_looks(started, backend, home):
    run = home / "bottles" / "demo" / "run"
    started(*IDLE, limits=Limits(memory=512 << 20, pids=100, cpus=1))
    backend.tidy("demo")
    assert (run / "supervisor.sock").exists(), "one that lives is left alone"
    os.kill(parts(backend)["supervisor"], signal.SIGKILL)
    eventually(lambda: not backend.life("demo").alive)

    def tidied() -> bool:
        backend.tidy("demo")  # its last process may still be dying
        return not (run / "cgroups").exists()

    eventually(tidied)
    assert cgroups.leftovers(backend.tag) == []
    assert not (run / "supervisor.sock").exists()


def test_the_record_of_groups_stays_until_they_are_gone(home):
    (home / "group" / "busy").mkdir(parents=True)
    (home / "group" / "busy" / "member").touch()
    for name in ("lock", "supervisor.sock"):
        (home / name).touch()
    (home / "cgroups").write_text(f"{home}/group\n")
    run_dir.tidy(home)
    assert ((home / "cgroups").exists(), (home / "supervisor.sock").exists()) == (True, False)
    shutil.rmtree(home / "group")
    run_dir.tidy(home)
    assert not (home / "cgroups").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_supervisor_that_is_asked_to_stop_what_has_just_ended_tells_how_it_ended(started, backend, number):
    """Both at one moment: the end is there to be read when the request is."""
    started(*IDLE, limits=Limits(pids=100))
    pids = parts(backend)
    os.kill(pids["supervisor"], signal.SIGSTOP)
    os.kill(pids["init"], signal.SIGKILL)
    eventually(lambda: gone(pids["bwrap"]))
    os.kill(pids["supervisor"], number)
    os.kill(pids["supervisor"], signal.SIGCONT)
    eventually(lambda: not backend.life("demo").alive)
    assert backend.life("demo").exit_code == 137
    assert cgroups.leftovers(backend.tag) == []
    assert not (backend.home / "bottles/demo/run/supervisor.sock").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGWINCH])
def test_run_tells_how_it_ended_although_a_signal_comes_with_the_end(plan_of, drive, backend, number):
    plan = plan_of(*SH, "echo ready; exec sleep 1000", limits=Limits(pids=100))
    with subprocess.Popen(
        drive.words("run", plan), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout.readline() == "ready\n"
        # The command may be quicker than the word that it runs; whoever serves this has given it.
        eventually(lambda: drive("exec", "demo", "true").returncode == 0)
        pids = parts(backend)
        run.send_signal(signal.SIGSTOP)
        os.kill(pids["init"], signal.SIGKILL)
        eventually(lambda: gone(pids["bwrap"]))
        run.send_signal(number)
        run.send_signal(signal.SIGCONT)
        assert run.wait(PATIENCE) == 137
        assert "Traceback" not in run.stderr.read()
    assert backend.life("demo").exit_code == 137
    assert cgroups.leftovers(backend.tag) == []


def test_orphans_are_those_that_nobody_knows(started, backend):
    started(*IDLE, slug="known")
    started(*IDLE, slug="forgotten")
    assert backend.orphans(["known"]) == ["forgotten"]
    backend.remove("forgotten")
    assert backend.orphans(["known"]) == []
    assert list((backend.home / "bottles" / "forgotten" / "run").iterdir()) == []


def test_it_starts_again_after_any_end(started, backend):
    started(*IDLE)
    os.kill(parts(backend)["supervisor"], signal.SIGKILL)
    eventually(lambda: not backend.life("demo").alive)
    started(*IDLE)
    assert backend.life("demo").alive


def test_looks_at_the_lock_do_not_disturb_each_other_nor_a_start(home):
    run = home / "run"
    run.mkdir()
    lock = run_dir.acquire(run, "demo")
    assert run_dir.alive(run)
    os.close(lock)
    look = os.open(run / "lock", os.O_RDONLY)
    fcntl.flock(look, fcntl.LOCK_SH)
    assert not run_dir.alive(run)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_dir, "LOCK_SECONDS", 0.05)
        with pytest.raises(BackendError):
            run_dir.acquire(run, "demo")
    os.close(look)
    os.close(run_dir.acquire(run, "demo"))


# limits


def test_the_limits_that_are_said_to_hold_hold(started, backend, drive):
    started(*IDLE, limits=Limits(memory=256 << 20, pids=40))
    require(not started.said, "control groups", f"{started.said}")
    loop = "while os.fork(): n += 1"
    fork = (
        f"import os, time\nn = 0\ntry:\n  {loop}\nexcept BlockingIOError: print(n < 40)\nelse: time.sleep(9)"
    )
    assert drive("exec", "demo", "/usr/bin/python3", "-c", fork).stdout == "True\n"
    eat = "x = bytearray(400 << 20)"
    backend.stop("demo")
    started(*IDLE, limits=Limits(memory=256 << 20))
    assert drive("exec", "demo", "/usr/bin/python3", "-c", eat).returncode == 137


def test_where_no_group_limits_other_means_do_and_the_operator_is_told(started, backend, drive, monkeypatch):
    monkeypatch.setattr(cgroups, "parents", lambda *_: [])
    monkeypatch.setattr(quotas, "processes_are_counted_within", lambda: True)
    started(*IDLE, limits=Limits(memory=256 << 20, pids=40, cpus=0.5))
    assert [line.split()[:2] for line in started.said] == [
        ["limits.memory", "holds"],
        ["limits.cpus", "is"],
    ]
    look = "import os, resource as r; print(len(os.sched_getaffinity(0)), r.getrlimit(r.RLIMIT_NPROC))"
    assert drive("exec", "demo", "/usr/bin/python3", "-c", look).stdout == "1 (40, 40)\n"


SHARES = """
import json, resource as r
print(json.dumps([r.getrlimit(getattr(r, name))[1] for name in ("RLIMIT_NOFILE", "RLIMIT_SIGPENDING")]))
"""


def test_a_bottle_has_a_part_of_what_is_counted_for_the_account_without_being_told(
    started, drive, monkeypatch
):
    monkeypatch.setattr(quotas, "processes_are_counted_within", lambda: True)
    started(*IDLE)
    files, signals = json.loads(drive("exec", "demo", "/usr/bin/python3", "-c", SHARES).stdout)
    assert files == quotas.FILES
    assert signals * quotas.SHARE <= resource.getrlimit(resource.RLIMIT_SIGPENDING)[1]
    count = "import resource as r; print(r.getrlimit(r.RLIMIT_NPROC)[0])"
    assert drive("exec", "demo", "/usr/bin/python3", "-c", count).stdout == f"{quotas.processes()}\n"
    assert started.said == []


def test_where_the_account_is_root_a_control_group_has_a_bottles_part_of_processes(started, backend):
    require(os.geteuid() == 0 and cgroups.parents(), "control groups", "run the tests as root, with some")
    started(*IDLE)
    groups = [Path(group) / "pids.max" for group in cgroups.leftovers(backend.tag)]
    assert [int(group.read_text()) for group in groups] == [quotas.processes()]


def test_what_a_manifest_says_of_descriptors_holds(started, drive):
    started(*IDLE, limits=Limits(files=100))
    assert json.loads(drive("exec", "demo", "/usr/bin/python3", "-c", SHARES).stdout)[0] == 100


def test_all_memory_that_can_be_written_like_files_is_limited(started, drive):
    """Each place by itself; /dev is for its devices only."""
    started(*IDLE, limits=Limits(memory=32 << 20))
    fill = (
        "for place in /tmp /dev/shm /home/agent; do df --output=size -B1 $place | tail -1; done; touch /dev/x"
    )
    said = drive("exec", "demo", *SH, fill)
    assert [int(size) for size in said.stdout.split()] == [32 << 20] * 3
    assert "Read-only file system" in said.stderr


def test_a_bottle_whose_processes_are_used_up_refuses_commands_and_lives_on(started, backend, drive):
    wait = "while not os.path.exists('/workspace/enough'): time.sleep(0.02)"
    fill = f"""import os, signal, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nothing stays of those that end
try:
    while os.fork(): pass
    {wait}
except BlockingIOError:
    print("full", flush=True)
    {wait}
    time.sleep(1000)
"""
    plan = started("/usr/bin/python3", "-c", fill, limits=Limits(pids=20))
    require(not started.said, "control groups", f"an account that may write to some: {started.said}")
    eventually(lambda: b"full" in b"".join(backend.logs("demo", follow=False)))
    refused = drive("exec", "demo", "true")
    assert (refused.returncode, "limit of this bottle" in refused.stderr) == (126, True)
    with pytest.raises(BackendError, match="limit of this bottle"):
        backend.copy_in("demo", PROGRAMS / "local_backend.py", "/tmp")
    (Path(plan.directory) / "workspace" / "enough").touch()
    eventually(lambda: drive("exec", "demo", "true").returncode == 0)
    assert backend.life("demo").alive


# availability


def test_without_bubblewrap_it_says_how_to_install_it(backend, started, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    for attempt in (backend.available, lambda: started(*IDLE)):
        with pytest.raises(Unavailable, match="apt-get install bubblewrap"):
            attempt()


def test_a_bubblewrap_that_cannot_work_says_why(backend, started, monkeypatch, home):
    (home / "bwrap").write_text(
        "#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2; exit 1\n"
    )
    (home / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", str(home))
    for attempt in (backend.available, lambda: started(*IDLE)):
        with pytest.raises(Unavailable, match=r"No permissions to create new namespace.*user namespaces"):
            attempt()


def test_it_is_available_here(backend):
    backend.available()
