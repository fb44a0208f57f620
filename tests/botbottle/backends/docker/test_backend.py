"""Bottles in a real Docker engine: what goes in, what comes back, and what is left when things die."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import docker
import pytest

from botbottle import backends
from botbottle.backends.accounts import sandbox_labels
from botbottle.backends.base import NotRunning, Unavailable
from botbottle.backends.docker.backend import DockerBackend
from botbottle.core.plan_types import (
    CONFIG_INSIDE,
    SOCKETS_INSIDE,
    TRUST_INSIDE,
    WORKSPACE_INSIDE,
    BackendError,
    File,
    Limits,
    Mount,
    Plan,
    Variable,
)
from egress.contract.secret_variables import FILE
from tests.botbottle.conftest import listening_on_the_host
from tests.support import PROGRAMS, ROOT
from tests.support.docker_engine import Engine, OwnEngine, docker_host, engine, own_engine
from tests.support.docker_images import PYTHON_IMAGE, SHELL_IMAGE
from tests.support.timeouts import PATIENCE, wait_until

__all__ = ["docker_host", "engine", "own_engine"]
pytestmark = [pytest.mark.process, pytest.mark.docker, pytest.mark.usefixtures("docker_host")]
SECRET = "correct-horse-battery-staple"
IDLE = ("sleep", "1000")


def no_progress(_line: str) -> None:
    """Nobody waits."""


class Bottle:
    """A bottle's directories on the host, a plan for it, and its backend."""

    def __init__(self, home: Path, slug: str) -> None:
        self.home, self.slug = home, slug
        self.directory = home / "bottles" / slug
        self.workspace = home.parent / "workspace"
        for path in (self.directory / "sockets", self.directory / "current-config", self.directory / "ca"):
            path.mkdir(parents=True)
        self.workspace.mkdir(exist_ok=True)
        os.chown(self.workspace, 1000, 1000)
        (self.directory / "current-config" / "routes.yaml").write_text("routes: []\n")
        for name in ("ca.pem", "bundle.pem"):
            (self.directory / "ca" / name).write_text(f"# {name}\n")
        self.backend = DockerBackend(home)

    def plan(self, *command: str, **changes: Any) -> Plan:
        mounts = (
            Mount(str(self.workspace), WORKSPACE_INSIDE, writable=True),
            Mount(f"{self.directory}/sockets", SOCKETS_INSIDE),
            Mount(f"{self.directory}/current-config", CONFIG_INSIDE),
            Mount(f"{self.directory}/ca", TRUST_INSIDE),
        )
        plan = Plan(
            slug=self.slug,
            backend="docker",
            directory=str(self.directory),
            image=PYTHON_IMAGE,
            command=command,
            variables={"HOME": Variable("/home/agent"), "PATH": Variable("/usr/local/bin:/usr/bin:/bin")},
            mounts=mounts,
        )
        return replace(plan, **changes)

    def start(self, *command: str, **changes: Any) -> None:
        self.backend.start(self.plan(*command, **changes), no_progress)

    def exec(self, *command: str, tty: bool = False) -> int:
        return self.backend.exec(self.slug, command, tty=tty)

    def containers(self, client: docker.DockerClient) -> list[Any]:
        """Of this home alone: others use the same engine."""
        home = sandbox_labels(self.home, self.slug)["bot-bottle.home"]
        return client.containers.list(all=True, filters={"label": f"bot-bottle.home={home}"})

    def log(self) -> str:
        return b"".join(self.backend.logs(self.slug, follow=False)).decode().replace("\r\n", "\n")

    def log_to_the_end(self) -> str:
        wait_until(lambda: not self.backend.life(self.slug).alive, what="its end")
        return self.log()


@pytest.fixture
def bottle(tmp_path: Path, engine: Engine) -> Iterator[Bottle]:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    made = Bottle(home, "demo")
    yield made
    for slug in made.backend.orphans([]):
        made.backend.remove(slug)


@pytest.fixture
def client(engine: Engine) -> Iterator[docker.DockerClient]:
    client = docker.DockerClient(base_url=engine.url)
    yield client
    client.close()


def test_it_is_found_by_name(tmp_path: Path) -> None:
    backend = backends.get("docker", tmp_path)
    backend.available()
    assert backend.name == "docker"


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("unix:///nowhere/docker.sock", "does not answer at /nowhere/docker.sock: No such file or directory"),
        ("tcp://127.0.0.1:2375", "is not on this host"),
        ("ssh://host", "is not on this host"),
    ],
)
def test_an_engine_out_of_reach_is_unavailable(
    address: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", address)
    with pytest.raises(Unavailable, match=sentence):
        DockerBackend(tmp_path).available()


def test_a_bottle_starts_lives_and_stops(bottle: Bottle) -> None:
    before = time.time()
    bottle.start(*IDLE)
    life = bottle.backend.life("demo")
    assert life.alive
    assert life.pid
    assert life.started_at is not None
    assert before <= life.started_at <= time.time(), "the engine reads the same clock"
    bottle.backend.stop("demo", seconds=5)
    life = bottle.backend.life("demo")
    assert (life.alive, life.exit_code) == (False, 128 + 15)
    bottle.backend.stop("demo")
    bottle.backend.remove("demo")
    assert bottle.backend.life("demo").exit_code is None
    assert bottle.backend.orphans([]) == []


def test_a_bottle_without_a_command_idles_until_it_is_stopped(bottle: Bottle) -> None:
    bottle.start()
    assert bottle.exec("true") == 0
    started = time.monotonic()
    bottle.backend.stop("demo", seconds=2 * PATIENCE)
    assert time.monotonic() - started < PATIENCE, "it ends when it is asked to"


def test_a_program_that_ignores_the_request_is_killed(bottle: Bottle) -> None:
    bottle.start("sh", "-c", "trap '' TERM; echo up; while true; do sleep 1; done")
    wait_until(bottle.log, what="its trap")
    bottle.backend.stop("demo", seconds=1)
    assert bottle.backend.life("demo").exit_code == 128 + 9


def test_what_a_bottle_is(bottle: Bottle, capfd: pytest.CaptureFixture[str]) -> None:
    note = File("/home/agent/.config/note.md", "ask first\n", 0o600)
    fixed = File("/etc/bot-bottle/agent.json", "{}\n")
    bottle.start(*IDLE, files=(note, fixed))
    script = """
        id; hostname() { cat /proc/sys/kernel/hostname; }; hostname; pwd; echo "$HOME"
        cat ~/.config/note.md /etc/bot-bottle/agent.json /etc/ssl/certs/ca-certificates.crt /etc/ssl/cert.pem
        cat /etc/pki/tls/certs/ca-bundle.crt /usr/local/share/ca-certificates/bot-bottle.crt
        cat /etc/bot-bottle/current-config/routes.yaml; grep -c nameserver /etc/resolv.conf
        echo mine > /workspace/made; echo mine > ~/made; echo mine > /tmp/made; ls -1 /sys/class/net
        for place in /made /etc/made /run/made /etc/bot-bottle/ca/x /run/bot-bottle/sockets/x /etc/passwd
        do echo x > $place; done
    """
    capfd.readouterr()
    assert bottle.exec("sh", "-c", script) != 0
    printed = capfd.readouterr()
    assert printed.out.splitlines() == [
        "uid=1000(agent) gid=1000(agent) groups=1000(agent)",
        "demo", "/workspace", "/home/agent", "ask first", "{}",
        "# bundle.pem", "# bundle.pem", "# bundle.pem", "# ca.pem", "routes: []", "0", "lo",
    ]  # fmt: skip
    assert len(printed.err.splitlines()) == 6
    assert (bottle.workspace / "made").stat().st_uid == 1000
    (bottle.directory / "current-config" / "routes.yaml").write_text("routes: [live]\n")
    bottle.exec("cat", "/etc/bot-bottle/current-config/routes.yaml")
    assert capfd.readouterr().out == "routes: [live]\n"


def test_no_secret_can_be_inspected_or_found_on_the_host_but_by_the_proxy(
    bottle: Bottle, client: docker.DockerClient, capfd: pytest.CaptureFixture[str]
) -> None:
    variables = {"API_KEY": Variable(from_env="BOTTLE_TEST_KEY"), "PATH": Variable("/bin")}
    os.environ["BOTTLE_TEST_KEY"] = SECRET
    try:
        bottle.start(*IDLE, variables=variables)
    finally:
        del os.environ["BOTTLE_TEST_KEY"]
    (container,) = bottle.containers(client)
    assert SECRET not in json.dumps(container.attrs)
    assert SECRET not in json.dumps(container.top())
    told = bottle.directory / "run" / FILE
    assert [path for path in bottle.home.rglob("*") if path.is_file() and SECRET in path.read_text()] == [
        told
    ]
    assert told.stat().st_mode & 0o777 == 0o600
    assert not [each for each in container.attrs["Mounts"] if told.is_relative_to(each["Source"])]
    capfd.readouterr()
    bottle.exec("sh", "-c", 'echo "$API_KEY"; cat /proc/1/cmdline /proc/1/environ 2>&1')
    printed = capfd.readouterr().out
    assert printed.startswith(SECRET)
    assert printed.count(SECRET) == 1
    bottle.backend.tidy("demo")
    assert told.exists(), "it lives"
    bottle.backend.stop("demo")
    assert not told.exists()


def test_the_container_is_confined(bottle: Bottle, client: docker.DockerClient) -> None:
    bottle.start(*IDLE)
    (container,) = bottle.containers(client)
    host = container.attrs["HostConfig"]
    assert container.name == f"bot-bottle-{container.labels['bot-bottle.home'][:8]}-demo"
    assert container.labels["bot-bottle.slug"] == "demo"
    assert len(container.labels["bot-bottle.home"]) == 16
    assert (host["NetworkMode"], host["ReadonlyRootfs"], host["CapDrop"]) == ("none", True, ["ALL"])
    assert (host["Privileged"], host["RestartPolicy"]["Name"]) == (False, "no")
    status = Path(f"/proc/{container.attrs['State']['Pid']}/status").read_text()
    for name, value in {"CapBnd": "0" * 16, "CapEff": "0" * 16, "NoNewPrivs": "1", "Seccomp": "2"}.items():
        assert re.search(rf"^{name}:\s+{value}$", status, re.MULTILINE), status


def test_the_image_knows_its_own_path(
    bottle: Bottle, client: docker.DockerClient, capfd: pytest.CaptureFixture[str]
) -> None:
    from botbottle.provision.variables import default_variables

    text = f"FROM {PYTHON_IMAGE}\nENV PATH=/opt/bin:/usr/local/bin:/bin FLAVOUR=plain COLOUR=red\n"
    image = bottle.backend.rebuild("demo", text, no_progress)
    variables = {"PATH": Variable(default_variables()["PATH"]), "COLOUR": Variable("blue")}
    bottle.start(*IDLE, image=image, variables=variables)
    capfd.readouterr()
    bottle.exec("sh", "-c", "echo $PATH $FLAVOUR $COLOUR")
    assert capfd.readouterr().out == "/home/agent/.local/bin:/opt/bin:/usr/local/bin:/bin plain blue\n"


def test_exit_codes_come_through(bottle: Bottle) -> None:
    commands = ["true", "false", "exit 42", "kill -9 $$", "kill -TERM $$", "nosuch", "/etc"]
    bottle.start(*IDLE)
    assert {command: bottle.exec("sh", "-c", command) for command in commands} == {
        command: code_on_the_host(command) for command in commands
    }
    bottle.backend.stop("demo", seconds=1)
    for command in ("exit 42", "kill -9 $$"):  # as the first program: its own code, and a signal
        wanted = code_on_the_host(command)
        assert bottle.backend.run(bottle.plan("sh", "-c", command), no_progress) == wanted
        assert bottle.backend.life("demo").exit_code == wanted


def code_on_the_host(command: str) -> int:
    code = subprocess.run(["sh", "-c", command], check=False, capture_output=True).returncode
    return 128 - code if code < 0 else code


def test_a_command_that_is_not_there_is_said(bottle: Bottle) -> None:
    with pytest.raises(BackendError, match=r"ended at once, with code 127: .*nosuch: not found"):
        bottle.start("nosuch")
    bottle.start(*IDLE)
    assert bottle.exec("nosuch") == 127
    assert bottle.exec("/etc/passwd") == 126


def test_a_short_command_is_no_failure_to_start(bottle: Bottle) -> None:
    bottle.start("sh", "-c", "echo done; exit 3")
    assert bottle.log_to_the_end() == "done\n"
    assert bottle.backend.life("demo").exit_code == 3


def test_logs_are_kept_and_followed(bottle: Bottle) -> None:
    bottle.start(
        "sh", "-c", "echo one; while ! test -e /workspace/go; do sleep 0.1; done; echo two >&2; exit 5"
    )
    lines = bottle.backend.logs("demo", follow=True)
    assert next(lines) == b"one\r\n"
    (bottle.workspace / "go").touch()
    assert b"".join(lines) == b"two\r\n"
    assert bottle.log() == "one\ntwo\n"


def test_input_output_and_errors_stay_apart(bottle: Bottle) -> None:
    """Byte for byte, and more than any buffer holds, in both directions at once."""
    bottle.start(*IDLE)
    data = os.urandom(3_000_000)
    finished = in_a_process(bottle, "exec", "sh", "-c", "echo to-stderr >&2; cat", stdin=data)
    assert (finished.returncode, finished.stderr) == (0, b"to-stderr\n")
    assert finished.stdout == data
    bottle.backend.stop("demo", seconds=1)
    finished = in_a_process(bottle, "run", "sh", "-c", "echo to-stderr >&2; cat; exit 9", stdin=data)
    assert (finished.returncode, finished.stderr) == (9, b"to-stderr\n")
    assert finished.stdout == data


def test_a_signal_to_the_foreground_reaches_the_program(bottle: Bottle) -> None:
    script = "trap 'exit 33' TERM; echo up; while :; do sleep 0.1; done"
    with subprocess.Popen(
        arguments(bottle, "run", "sh", "-c", script), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        process.terminate()
        assert process.wait(PATIENCE) == 33


def test_a_terminal_is_one_inside_too(bottle: Bottle) -> None:
    bottle.start(*IDLE)
    with Terminal(bottle, "exec-tty", "sh", "-c", "test -t 0 && stty size && exec cat") as terminal:
        terminal.expect("33 99")
        terminal.type(b"hello\r")
        terminal.expect("hello\r\nhello")
        terminal.type(b"\x03")
        assert terminal.wait() == 128 + 2


def test_a_terminal_is_left_and_found_again(bottle: Bottle) -> None:
    bottle.start("sh", "-c", "while read line; do echo got $line; test $line = end && exit 7; done")
    with Terminal(bottle, "attach") as terminal:
        terminal.type(b"first\r")
        terminal.expect("got first")
        terminal.type(b"\x10\x11")  # Ctrl-P Ctrl-Q
        assert terminal.wait() == 0
    assert bottle.backend.life("demo").alive
    with Terminal(bottle, "attach") as terminal:
        terminal.type(b"end\r")
        terminal.expect("got end")
        assert terminal.wait() == 7


@pytest.mark.parametrize("verb", [
    lambda backend: backend.exec("demo", ["true"], tty=False),
    lambda backend: backend.attach("demo"),
    lambda backend: backend.copy_in("demo", Path("/etc/passwd"), "/workspace"),
])  # fmt: skip
def test_a_bottle_that_does_not_run_is_said_to(bottle: Bottle, verb: Callable[[DockerBackend], Any]) -> None:
    with pytest.raises(NotRunning, match="bottle start demo"):
        verb(bottle.backend)


def test_a_running_bottle_is_not_started_twice(bottle: Bottle) -> None:
    bottle.start(*IDLE)
    with pytest.raises(BackendError, match="runs already"):
        bottle.start(*IDLE)
    bottle.backend.stop("demo", seconds=1)
    bottle.start(*IDLE)
    assert bottle.backend.life("demo").alive


def test_files_are_copied_as_the_agent_and_links_are_not_followed(bottle: Bottle, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "deep").mkdir(parents=True)
    (tree / "deep" / "file").write_text("content")
    (tree / "twin").hardlink_to(tree / "deep" / "file")
    (tree / "program").write_text("#!/bin/sh\n")
    (tree / "program").chmod(0o755)
    (tree / "link").symlink_to("/etc/shadow")
    bottle.start(*IDLE)
    bottle.backend.copy_in("demo", tree, "/home/agent")
    bottle.backend.copy_in("demo", tree / "deep" / "file", "/workspace/new/name")
    check = """
        cd ~/tree && test "$(cat deep/file twin)" = contentcontent && test -x program && test -L link &&
        test "$(stat -c %u deep/file)" = 1000 && test "$(cat /workspace/new/name)" = content
    """
    assert bottle.exec("sh", "-c", check) == 0


def test_a_copy_never_leaves_the_bottle_by_a_link_inside(bottle: Bottle, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    outside.chmod(0o777)
    bottle.start("sh", "-c", f"ln -s {outside} /workspace/trap; ln -s /etc /workspace/etc; exec sleep 1000")
    wait_until((bottle.workspace / "etc").is_symlink, what="the trap")
    (tmp_path / "file").write_text("content")
    for target in ("/workspace/trap/file", "/workspace/etc/file", "/usr/file"):
        with pytest.raises(BackendError, match="could not be copied"):
            bottle.backend.copy_in("demo", tmp_path / "file", target)
    assert list(outside.iterdir()) == []


def test_pipes_and_relative_targets_are_refused(bottle: Bottle, tmp_path: Path) -> None:
    bottle.start(*IDLE)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BackendError, match="pipe or a device"):
        bottle.backend.copy_in("demo", tmp_path / "pipe", "/workspace")
    with pytest.raises(BackendError, match="absolute path"):
        bottle.backend.copy_in("demo", tmp_path / "pipe", "workspace")
    with pytest.raises(BackendError, match="No such file"):
        bottle.backend.copy_in("demo", tmp_path / "nothing", "/workspace")


def test_limits_hold(bottle: Bottle) -> None:
    bottle.start(*IDLE, limits=Limits(cpus=0.5, memory=64 << 20, pids=20))
    assert bottle.exec("python3", "-c", "x = bytearray(200 << 20)") == 128 + 9
    fork = "import os, time\nfor _ in range(50):\n  if os.fork() == 0: time.sleep(5); os._exit(0)"
    assert bottle.exec("python3", "-c", fork) == 1
    bottle.backend.stop("demo", seconds=1)
    assert not bottle.backend.life("demo").alive


def test_an_image_without_python_says_what_to_add(bottle: Bottle) -> None:
    with pytest.raises(BackendError, match=r"no python3.*RUN apt-get install .* python3"):
        bottle.start(*IDLE, image=SHELL_IMAGE)
    assert bottle.backend.orphans([]) == []


def test_a_missing_image_says_how_to_get_it(bottle: Bottle) -> None:
    with pytest.raises(BackendError, match=r"no image 'localhost/nosuch'.*docker build -t localhost/nosuch"):
        bottle.start(*IDLE, image="localhost/nosuch")


def test_a_missing_mount_is_an_error_and_is_not_made(bottle: Bottle) -> None:
    plan = bottle.plan(*IDLE)
    missing = replace(plan, mounts=(*plan.mounts, Mount(f"{bottle.home}/nosuch", "/data")))
    with pytest.raises(BackendError, match="nosuch"):
        bottle.backend.start(missing, no_progress)
    assert not (bottle.home / "nosuch").exists()


def test_a_workspace_closed_to_the_agent_is_said(bottle: Bottle) -> None:
    os.chown(bottle.workspace, 0, 0)
    said: list[str] = []
    bottle.backend.start(bottle.plan(*IDLE), said.append)
    assert f"chown -R 1000:1000 {bottle.workspace}" in "\n".join(said)


def test_the_bottle_is_its_operator_when_that_is_not_root(bottle: Bottle) -> None:
    os.chown(bottle.home, 4321, 4321)
    os.chown(bottle.workspace, 4321, 4321)
    bottle.start("sh", "-c", "touch /workspace/mine ~/mine; exec sleep 1000")
    wait_until((bottle.workspace / "mine").exists, what="the file")
    assert (bottle.workspace / "mine").stat().st_uid == 4321


def test_files_of_an_image_are_read_without_running_it(bottle: Bottle, client: docker.DockerClient) -> None:
    assert "root:x:0:0" in (bottle.backend.read(PYTHON_IMAGE, "/etc/passwd") or "")
    text = f"FROM {PYTHON_IMAGE}\nRUN ln -s ../etc/passwd /home/link && ln -s loop /home/loop\n"
    image = bottle.backend.rebuild("demo", text, no_progress)
    assert "root:x:0:0" in (bottle.backend.read(image, "/home/link") or "")
    for path in ("/home/loop", "/nosuch", "/etc", "/bin/busybox"):
        assert bottle.backend.read(image, path) is None
    assert bottle.backend.read("localhost/nosuch", "/etc/passwd") is None
    assert bottle.containers(client) == []


def test_a_dockerfile_is_built_when_it_is_new(bottle: Bottle, tmp_path: Path) -> None:
    dockerfile = tmp_path / "Dockerfile"
    (tmp_path / "motd").write_text("first")
    dockerfile.write_text(f"FROM {PYTHON_IMAGE}\nCOPY motd /etc/motd\n")
    plan = bottle.plan("cat", "/etc/motd", image="", dockerfile=str(dockerfile))
    said: list[str] = []
    bottle.backend.start(plan, said.append)
    assert bottle.log_to_the_end() == "first"
    assert any("COPY motd" in line for line in said)
    said.clear()
    bottle.backend.start(plan, said.append)
    assert not any("Step" in line for line in said)
    assert bottle.log_to_the_end().endswith("first")  # it has ended
    (tmp_path / "motd").write_text("second")
    dockerfile.write_text(f"FROM {PYTHON_IMAGE}\nCOPY motd /etc/motd\n# changed\n")
    bottle.backend.start(plan, said.append)
    assert bottle.log_to_the_end() == "second"


def test_a_rebuild_tells_its_log_and_names_the_image(bottle: Bottle) -> None:
    said: list[str] = []
    text = f"FROM {PYTHON_IMAGE}\nRUN printf 'made\\033[31m\\033]0;x\\n' && echo x > /etc/made\n"
    image = bottle.backend.rebuild("demo", text, said.append)
    assert any(line.startswith("made\N{REPLACEMENT CHARACTER}") for line in said)
    assert bottle.backend.rebuild("demo", text, no_progress) == image
    bottle.start("cat", "/etc/made", image=image)
    assert bottle.log_to_the_end() == "x\n"
    assert bottle.backend.orphans(["demo"]) == []
    assert bottle.backend.orphans([]) == ["demo"]
    bottle.backend.remove("demo")
    assert bottle.backend.orphans([]) == []


def test_a_failed_rebuild_carries_the_end_of_its_log(bottle: Bottle, client: docker.DockerClient) -> None:
    text = f"FROM {PYTHON_IMAGE}\nRUN for i in 1 2 3; do echo line $i; done; exit 3\n"
    with pytest.raises(BackendError, match=r"(?s)line 3.*returned a non-zero code: 3"):
        bottle.backend.rebuild("demo", text, no_progress)
    assert bottle.containers(client) == []


def test_a_rebuild_has_no_network(bottle: Bottle) -> None:
    text = f'FROM {PYTHON_IMAGE}\nRUN test "$(ls /sys/class/net)" = lo && ! ip route | grep .\n'
    bottle.backend.rebuild("demo", text, no_progress)


def test_orphans_are_this_homes_alone(bottle: Bottle, tmp_path: Path) -> None:
    bottle.start(*IDLE)
    (tmp_path / "other").mkdir()
    other = DockerBackend(tmp_path / "other")
    assert other.orphans([]) == []
    assert not other.life("demo").alive
    other.remove("demo")
    assert bottle.backend.orphans(["demo"]) == []
    assert bottle.backend.orphans(["another"]) == ["demo"]


def test_after_a_crash_of_the_engine_life_is_told_truly(
    bottle: Bottle, own_engine: OwnEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", own_engine.url)
    bottle.start(*IDLE)
    pid = bottle.backend.life("demo").pid
    own_engine.kill()
    try:
        with pytest.raises(Unavailable, match="does not answer"):
            bottle.backend.life("demo")
    finally:
        own_engine.start()
    life = bottle.backend.life("demo")
    assert life.alive == Path(f"/proc/{pid}").exists()
    assert bottle.backend.orphans([]) == ["demo"]
    bottle.backend.stop("demo", seconds=1)
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), what="the end of its process")
    bottle.start(*IDLE)
    assert bottle.backend.life("demo").alive
    bottle.backend.remove("demo")
    assert bottle.backend.orphans([]) == []


def test_the_bridge_reaches_the_sockets(bottle: Bottle, capfd: pytest.CaptureFixture[str]) -> None:
    """And a socket that is made again, as by a new egress process, is found."""
    bottle.start(*IDLE)
    capfd.readouterr()
    for word in ("first", "second"):
        with answering(bottle.directory / "sockets" / "proxy.sock", word):
            assert bottle.exec("curl", "-s", "-m", "20", "http://127.0.0.1:9101/") == 0
        assert capfd.readouterr().out == word


def test_without_supervision_there_is_no_agent_plane(bottle: Bottle) -> None:
    bottle.start(*IDLE, supervise=False)
    assert bottle.exec("curl", "-s", "-m", "20", "http://127.0.0.1:9100/") == 7


@pytest.mark.parametrize("way", ["main", "exec"])
def test_nothing_gets_out(
    way: str, bottle: Bottle, engine: Engine, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The same script as in every backend; what is executed later is held as the first program is."""
    shutil.copy(PROGRAMS / "escape.py", bottle.workspace / "escape.py")
    (bottle.directory / "ca-key.pem").touch()
    other = tmp_path / "other.sock"
    with ExitStack() as stack:
        host = stack.enter_context(listening_on_the_host())
        hidden_socket = stack.enter_context(socket.socket(socket.AF_UNIX))
        hidden_socket.bind(f"\0bottle-{os.getpid()}")
        hidden_socket.listen()
        stack.enter_context(answering(other, "other", expected=False))
        for name in ("proxy", "agent"):
            stack.enter_context(answering(bottle.directory / "sockets" / f"{name}.sock", f"this is {name}"))
        given = {
            **host,
            "addresses": host_addresses(),
            "sockets": [*host["sockets"], str(other), engine.url.removeprefix("unix://")],
            "abstract": [f"bottle-{os.getpid()}"],
            "hidden": [
                str(bottle.home),
                str(ROOT),
                str(Path.home() / ".ssh"),
                f"{bottle.directory}/ca-key.pem",
            ],
            "readonly": ["/etc/ssl/certs/ca-certificates.crt", "/run/bot-bottle/variables.json"],
            "pids": [os.getpid(), os.getppid()],
        }
        command = ["python3", "-I", "/workspace/escape.py", json.dumps(given)]
        if way == "main":
            bottle.start(*command)
            printed = bottle.log_to_the_end()
        else:
            bottle.start(*IDLE)
            capfd.readouterr()
            assert bottle.exec(*command) == 0
            printed = capfd.readouterr().out
    result = json.loads(printed)
    assert result["open"] == {}
    assert len(result["refused"]) > 60
    assert {port: text.splitlines()[-1] for port, text in result["answers"].items()} == {
        "9101": "this is proxy",
        "9100": "this is agent",
    }
    facts = result["facts"]
    assert (facts["interfaces"], facts["uid"], facts["descriptors"]) == (["lo"], 1000, [0, 1, 2])
    assert {int(facts[name], 16) for name in ("CapEff", "CapPrm", "CapBnd", "CapAmb")} == {0}


def host_addresses() -> list[str]:
    """Those of the machine that are not its loopback."""
    said = subprocess.run(["ip", "-j", "addr"], capture_output=True, text=True, check=True).stdout
    found = [entry["local"] for link in json.loads(said) for entry in link.get("addr_info", [])]
    return [address for address in found if not address.startswith(("127.", "::1", "fe80"))]


class answering:  # noqa: N801 - reads as a word
    """HTTP answers on a Unix socket; where nobody is to come, nobody is waited for."""

    def __init__(self, path: Path, word: str, *, expected: bool = True) -> None:
        self._path, self._word, self._expected = path, word, expected

    def __enter__(self) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self._path))
        self._path.chmod(0o666)
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve)
        if self._expected:
            self._thread.start()

    def _serve(self) -> None:
        connection, _ = self._listener.accept()
        with connection:
            connection.recv(65536)
            body = self._word.encode()
            head = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
            connection.sendall(head + body)

    def __exit__(self, *_: object) -> None:
        if self._expected:
            self._listener.shutdown(socket.SHUT_RDWR)  # ends a wait for somebody who did not come
            self._thread.join(30)
        self._listener.close()
        self._path.unlink()


# The verbs that take over a terminal run in a process of their own, as a person would start them.

PROGRAM = """
import json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from botbottle.core.plan_types import Mount, Plan, Variable
from botbottle.backends.docker.backend import DockerBackend
home, verb, image, *command = sys.argv[2:]
backend = DockerBackend(Path(home))
variables = {"PATH": Variable("/usr/local/bin:/usr/bin:/bin")}
plan = Plan("demo", "docker", home, image, command=tuple(command), variables=variables, workdir="/tmp")
sys.exit({
    "exec": lambda: backend.exec("demo", command, tty=False),
    "exec-tty": lambda: backend.exec("demo", command, tty=True),
    "run": lambda: backend.run(plan, lambda line: None),
    "attach": lambda: backend.attach("demo"),
}[verb]())
"""


def arguments(bottle: Bottle, verb: str, *command: str) -> list[str]:
    return [sys.executable, "-c", PROGRAM, str(ROOT), str(bottle.home), verb, PYTHON_IMAGE, *command]


def in_a_process(
    bottle: Bottle, verb: str, *command: str, stdin: bytes
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        arguments(bottle, verb, *command), input=stdin, capture_output=True, check=False, timeout=60
    )


class Terminal:
    """A process on a terminal of 33 lines and 99 columns."""

    def __init__(self, bottle: Bottle, verb: str, *command: str) -> None:
        self._arguments = arguments(bottle, verb, *command)
        self._seen = ""

    def __enter__(self) -> Terminal:
        import fcntl
        import struct
        import termios

        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 99, 0, 0))
        self._process = subprocess.Popen(
            self._arguments, stdin=slave, stdout=slave, stderr=slave, start_new_session=True
        )
        os.close(slave)
        os.set_blocking(self._master, False)
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        os.close(self._master)

    def type(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def expect(self, text: str) -> None:
        def seen() -> bool:
            self._read()
            return text in self._seen

        try:
            wait_until(seen, what=text)
        except AssertionError as error:
            raise AssertionError(f"{text!r} not in {self._seen!r}") from error

    def _read(self) -> None:
        try:
            self._seen += os.read(self._master, 65536).decode()
        except OSError:
            return

    def wait(self) -> int:
        def ended() -> bool:
            self._read()
            return self._process.poll() is not None

        wait_until(ended, what="its end")
        return self._process.returncode
