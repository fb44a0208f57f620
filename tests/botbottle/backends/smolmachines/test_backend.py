"""Bottles as machines: the real `smolvm` for what needs no boot, a recorded contract for what does."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from botbottle.backends import get
from botbottle.backends.accounts import sandbox_name
from botbottle.backends.base import NotRunning, Unavailable
from botbottle.backends.smolmachines.backend import SmolmachinesBackend
from botbottle.backends.smolmachines.smolvm import Refused, Smolvm, find_program
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
from egress.contract.secret_variables import FILE, from_bytes
from tests.support import ROOT
from tests.support.requirements import require
from tests.support.timeouts import PATIENCE, wait_until

pytestmark = pytest.mark.process  # each call is a program of its own
INSTALLED = ROOT / ".cache" / "smolmachines" / "smol"
HINT = "pip install --no-deps --target .cache/smolmachines smolmachines==1.32.2"
SECRET = "correct-horse-battery-staple"
REGISTER = "claude mcp add --scope user --transport http supervise http://127.0.0.1:9100/mcp"


def a_plan(tmp_path: Path) -> Plan:
    for name in ("home", "rootfs/etc", "workspace", "sockets", "config", "ca"):
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
    mounts = (
        Mount(f"{tmp_path}/workspace", WORKSPACE_INSIDE, writable=True),
        Mount(f"{tmp_path}/sockets", SOCKETS_INSIDE),
        Mount(f"{tmp_path}/config", CONFIG_INSIDE),
        Mount(f"{tmp_path}/ca", TRUST_INSIDE),
    )
    return Plan(
        slug="demo",
        backend="smolmachines",
        directory=f"{tmp_path}/home/bottles/demo",
        image=f"{tmp_path}/rootfs",
        agent="claude",
        command=("claude", "--continue"),
        variables={"HOME": Variable("/home/agent"), "API_KEY": Variable(SECRET)},
        files=(File("/home/agent/.claude.json", "{}", 0o600), File("/etc/bot-bottle/note", "note")),
        mounts=mounts,
        limits=Limits(cpus=1.5, memory=512 << 20),
    )


# The real command line


@pytest.fixture
def real(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("PATH", f"{INSTALLED}:{os.environ['PATH']}")
    try:
        return find_program()
    except Unavailable:
        require(False, "smolvm", HINT)
        raise


class TestTheRealCommandLine:
    def test_a_machine_is_created_listed_seen_and_deleted(self, real: str, tmp_path: Path) -> None:
        plan = a_plan(tmp_path)
        backend = SmolmachinesBackend(tmp_path / "home")
        create_only(backend, plan)
        status = backend._status("demo")
        assert status is not None
        assert (status["network"], status["ports"], status["state"]) == (False, 0, "created")
        assert (status["cpus"], status["memory_mib"], status["mounts"]) == (2, 512, 3)
        assert status["labels"]["bot-bottle.slug"] == "demo"
        backend._require_no_network("demo")
        assert not backend.life("demo").alive
        assert backend.orphans([]) == ["demo"]
        assert backend.orphans(["demo"]) == []
        backend.stop("demo")
        backend.remove("demo")
        assert backend._status("demo") is None
        assert backend.orphans([]) == []
        backend.remove("demo")

    def test_what_it_does_not_find_is_told_from_what_it_refuses(self, real: str, tmp_path: Path) -> None:
        smolvm = Smolvm(tmp_path / "state")
        for verb in (
            ["status", "--json", "--name", "x"],
            ["stop", "--name", "x"],
            ["delete", "-f", "--name", "x"],
        ):
            with pytest.raises(Refused, match=r"^smolvm refused: .*not found") as caught:
                smolvm.call(*verb)
            assert caught.value.is_missing
        backend = SmolmachinesBackend(tmp_path / "home")
        create_only(backend, a_plan(tmp_path))
        with pytest.raises(Refused, match="already exists") as caught:
            create_only(backend, a_plan(tmp_path))
        assert not caught.value.is_missing
        backend.remove("demo")

    def test_a_machine_with_a_network_is_not_used(self, real: str, tmp_path: Path) -> None:
        backend = SmolmachinesBackend(tmp_path / "home")
        create_only(backend, a_plan(tmp_path), "--net")
        with pytest.raises(BackendError, match="reports a network"):
            backend._require_no_network("demo")
        backend.remove("demo")

    def test_homes_are_apart(self, real: str, tmp_path: Path) -> None:
        backend = SmolmachinesBackend(tmp_path / "home")
        create_only(backend, a_plan(tmp_path))
        (tmp_path / "other").mkdir()
        assert SmolmachinesBackend(tmp_path / "other").orphans([]) == []
        backend.remove("demo")

    @pytest.mark.parametrize(
        ("verb", "flags"),
        [
            ("create", "--name --image --cpus --mem --label -v --mount-socket -w -u"),
            ("start", "--name"),
            ("exec", "--name -u -i -t -d -w --stream"),
            ("cp", "--mode --uid --gid"),
            ("stop", "--name -t"),
            ("delete", "--name -f"),
            ("status", "--name --json"),
            ("ls", "--json"),
        ],
    )
    def test_it_knows_every_option_that_is_used(self, real: str, verb: str, flags: str) -> None:
        said = subprocess.run([real, "machine", verb, "--help"], capture_output=True, text=True, check=True)
        words = said.stdout.replace(",", " ").split()
        assert not [flag for flag in [*flags.split(), "--state-dir", "--error-format"] if flag not in words]


def create_only(backend: SmolmachinesBackend, plan: Plan, *more: str) -> None:
    """What `start` asks for first; booting is more than every host can."""
    from botbottle.backends.accounts import sandbox_labels
    from botbottle.backends.smolmachines.machine import create_arguments

    arguments = create_arguments(plan, sandbox_labels(backend.home, plan.slug))
    backend._smolvm.call("create", "--name", sandbox_name(backend.home, plan.slug), *arguments, *more)


# The recorded contract


class Recorded:
    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def calls(self, verb: str = "") -> list[dict[str, Any]]:
        lines = (self.directory / "calls").read_text().splitlines()
        return [call for call in map(json.loads, lines) if verb in {"", call["verb"]}]

    def fail(self, word: str, stderr: str) -> None:
        (self.directory / f"fail-{word}").write_text(stderr)


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorded]:
    (tmp_path / "bin").mkdir()
    (tmp_path / "record").mkdir()
    shutil.copy(Path(__file__).parents[1] / "smolvm_stand_in", tmp_path / "bin" / "smolvm")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{Path(sys.executable).parent}:/usr/bin:/bin")
    monkeypatch.setenv("STAND_IN", f"{tmp_path}/record")
    return Recorded(tmp_path / "record")


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return a_plan(tmp_path)


@pytest.fixture
def backend(tmp_path: Path, plan: Plan) -> SmolmachinesBackend:
    found = get("smolmachines", tmp_path / "home")
    assert isinstance(found, SmolmachinesBackend)
    return found


def no_progress(_line: str) -> None:
    """Nobody waits."""


def test_a_start_asks_for_what_a_bottle_is(
    recorded: Recorded, backend: SmolmachinesBackend, plan: Plan, tmp_path: Path
) -> None:
    """One start for all that it asks for: each of its calls is a program."""
    said: list[str] = []
    backend.start(plan, said.append)
    check_the_machine(recorded, tmp_path)
    check_what_is_copied(recorded)
    (register,) = [call for call in recorded.calls("exec") if "mcp" in call["command"]]
    assert " ".join(register["command"]).endswith(REGISTER), "the server is registered"
    assert register["options"]["-u"] == ["1000:1000"], "as the agent's user"
    assert not [line for line in said if "Warning: the supervise" in line]
    with pytest.raises(BackendError, match="runs already"):
        backend.start(plan, no_progress)
    assert backend.exec("demo", ["exit", "7"], tty=False) == 7
    check_a_copy_in(recorded, backend, tmp_path)
    with pytest.raises(BackendError, match="bottle logs --follow demo"):
        backend.attach("demo")
    with pytest.raises(Unavailable, match="docker save"):
        backend.rebuild("demo", "FROM x\n", no_progress)
    assert backend.life("demo").alive
    backend.stop("demo")
    assert not backend.life("demo").alive
    assert b"".join(backend.logs("demo", follow=False)) == b"what it printed\n"
    backend.remove("demo")
    assert backend.orphans([]) == []
    for call in recorded.calls():
        assert call["options"]["--state-dir"] == [f"{tmp_path}/home/smolmachines"]
        assert not {"--net", "-p", "--port"} & set(call["argv"])


def check_the_machine(recorded: Recorded, tmp_path: Path) -> None:
    (create,) = recorded.calls("create")
    options = create["options"]
    assert options["--name"] == [sandbox_name(tmp_path / "home", "demo")]
    assert options["--image"] == [f"{tmp_path}/rootfs"]
    assert options["-v"] == [
        f"{tmp_path}/workspace:/workspace:rw",
        f"{tmp_path}/config:/etc/bot-bottle/current-config:ro",
        f"{tmp_path}/ca:/etc/bot-bottle/ca:ro",
    ]
    assert options["--mount-socket"] == [
        f"{tmp_path}/sockets/{name}:/run/bot-bottle/sockets/{name}" for name in ("proxy.sock", "agent.sock")
    ]
    assert (options["--cpus"], options["--mem"], options["-u"]) == (["2"], ["512"], ["1000:1000"])
    launch = recorded.calls("exec")[-1]
    assert "-d" in launch["options"]
    assert launch["command"][-2:] == ["claude", "--continue"]
    assert launch["options"]["-u"] == ["1000:1000"]


def check_what_is_copied(recorded: Recorded) -> None:
    """Variables are, and are never an argument."""
    assert not [call for call in recorded.calls() if SECRET in " ".join(call["argv"])]
    copies = {call["positionals"][1].split(":")[1]: call for call in recorded.calls("cp")}
    variables = copies["/run/bot-bottle/variables.json"]
    assert json.loads(variables["content"])["API_KEY"] == SECRET
    assert (variables["options"]["--mode"], variables["options"]["--uid"]) == (["400"], ["1000"])
    assert not Path(variables["positionals"][0]).exists()
    assert {"/run/bot-bottle/inside/init.py", "/run/bot-bottle/inside/bridge.py"} <= set(copies)
    assert copies["/etc/bot-bottle/note"]["content"] == "note"
    index = json.loads(copies["/run/bot-bottle/files/index.json"]["content"])
    assert index == [{"name": "0", "path": "/home/agent/.claude.json", "mode": 0o600}]


def check_a_copy_in(recorded: Recorded, backend: SmolmachinesBackend, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("content")
    backend.copy_in("demo", tmp_path / "file", "/workspace")
    call = recorded.calls("exec")[-1]
    assert call["options"]["-u"] == ["1000:1000"]
    assert call["command"][-2:] == ["/workspace", "file"]
    assert call["stdin"] > 512


def test_the_proxy_knows_what_it_was_handed_until_it_ends(
    recorded: Recorded, backend: SmolmachinesBackend, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOST_KEY", SECRET)
    plan = replace(plan, variables={"API_KEY": Variable(from_env="HOST_KEY"), "A": Variable("plain value")})
    told = Path(plan.directory) / "run" / FILE
    for end in (backend.stop, backend.remove):
        backend.start(plan, no_progress)
        assert from_bytes(told.read_bytes()) == {SECRET}
        backend.tidy("demo")
        assert told.exists(), "it lives"
        end("demo")
        assert not told.exists()
    recorded.fail("create", "no room")
    with pytest.raises(BackendError):
        backend.start(plan, no_progress)
    assert not told.exists()


@pytest.mark.parametrize("change", [{"supervise": False}, {"agent": "codex"}])
def test_others_are_registered_by_their_files_alone(
    recorded: Recorded, backend: SmolmachinesBackend, plan: Plan, change: dict[str, Any]
) -> None:
    backend.start(replace(plan, **change), no_progress)
    assert not [call for call in recorded.calls("exec") if "mcp" in call["command"]]
    if not change.get("supervise", True):
        assert len(recorded.calls("create")[0]["options"]["--mount-socket"]) == 1
        assert "--no-supervise" in recorded.calls("exec")[-1]["command"]


def test_a_failed_registration_is_a_warning_with_the_command(
    recorded: Recorded, backend: SmolmachinesBackend, plan: Plan
) -> None:
    recorded.fail("mcp", "claude: command\033[31m crashed\n")
    said: list[str] = []
    backend.start(plan, said.append)
    (warning,) = [line for line in said if "supervise" in line]
    assert "claude: command [31m crashed" in warning
    assert warning.endswith(f"bottle exec demo -- {REGISTER}")
    assert backend.life("demo").alive
    backend.remove("demo")
    recorded.fail("mcp", "MCP server supervise already exists in user config\n")
    said.clear()
    assert backend.run(replace(plan, command=("exit", "42")), said.append) == 42, "the foreground's own code"
    assert not [line for line in said if "supervise tools" in line], "one that is there is no failure"
    assert not backend.life("demo").alive


def test_a_machine_that_reports_a_network_is_deleted(
    recorded: Recorded, backend: SmolmachinesBackend, plan: Plan
) -> None:
    (recorded.directory / "network").touch()
    with pytest.raises(BackendError, match="reports a network"):
        backend.start(plan, no_progress)
    assert recorded.calls("start") == []
    assert backend.orphans([]) == []


@pytest.mark.parametrize("word", ["start", "variables.json", "run_logged.py"])
def test_a_start_that_fails_leaves_no_machine(
    recorded: Recorded, backend: SmolmachinesBackend, plan: Plan, word: str
) -> None:
    recorded.fail(word, json.dumps({"error": {"code": "SMOLVM_ERROR", "message": "no such luck"}}))
    with pytest.raises(BackendError, match="no such luck"):
        backend.start(plan, no_progress)
    assert backend.orphans([]) == []


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"image": "alpine"}, "not on this host.*docker save"),
        ({"image": "/nosuch"}, "not on this host"),
        ({"dockerfile": "/x/Dockerfile"}, "builds none"),
        ({"mounts": (Mount("/etc/passwd", "/data"),)}, "/etc/passwd is not a directory"),
    ],
)
def test_what_it_cannot_do_is_refused_before_anything_is_made(
    recorded: Recorded, backend: SmolmachinesBackend, plan: Plan, change: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(BackendError, match=sentence):
        backend.start(replace(plan, **change), no_progress)
    assert recorded.calls("create") == []


@pytest.mark.parametrize(
    "verb",
    [
        lambda backend: backend.exec("demo", ["true"], tty=False),
        lambda backend: backend.attach("demo"),
        lambda backend: backend.copy_in("demo", Path("/etc/passwd"), "/workspace"),
    ],
)
def test_a_machine_that_does_not_run_is_said_to(
    recorded: Recorded, backend: SmolmachinesBackend, verb: Callable[[SmolmachinesBackend], Any]
) -> None:
    with pytest.raises(NotRunning, match="bottle start demo"):
        verb(backend)


def test_what_a_killed_start_had_yet_to_copy_in_is_put_away_and_what_one_copies_is_not(
    backend: SmolmachinesBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def copied(*arguments: str, **_: object) -> bytes:
        backend.tidy("demo")
        seen.append(Path(arguments[-2]).read_text())
        return b""

    monkeypatch.setattr(backend._smolvm, "call", copied)
    backend._copy("demo", SECRET, "/run/x", 0o400)
    assert seen == [SECRET]
    left = backend.home / "bottles" / "demo" / "run" / "smolmachines" / "copied-x"
    left.write_text(SECRET)
    backend.tidy("demo")
    assert not left.exists()


def test_what_one_copies_is_whole_whenever_others_tidy(
    backend: SmolmachinesBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    over = threading.Event()

    def copied(*arguments: str, **_: object) -> bytes:
        seen.append(Path(arguments[-2]).read_text())
        return b""

    def tidy_on() -> None:
        while not over.is_set():
            backend.tidy("demo")

    monkeypatch.setattr(backend._smolvm, "call", copied)
    tidying = threading.Thread(target=tidy_on)
    tidying.start()
    try:
        for _ in range(1000):
            backend._copy("demo", SECRET, "/run/x", 0o400)
    finally:
        over.set()
        tidying.join()
    assert seen == [SECRET] * 1000
    assert not list(backend.home.glob("bottles/demo/run/smolmachines/copied-*"))


def test_files_of_a_directory_are_read_and_none_outside_of_it(
    backend: SmolmachinesBackend, tmp_path: Path
) -> None:
    root = tmp_path / "rootfs"
    (root / "etc" / "motd").write_text("hello")
    (root / "etc" / "out").symlink_to(tmp_path / "secret")
    (tmp_path / "secret").write_text("secret")
    assert backend.read(str(root), "/etc/motd") == "hello"
    for path in ("/etc/out", "/../secret", "/etc", "/nosuch"):
        assert backend.read(str(root), path) is None


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        ("", "not installed. Install it with: pip install smolmachines"),
        ("exit 2", "another program of that name"),
    ],
)
def test_without_the_right_program_it_is_unavailable(
    script: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if script:
        (tmp_path / "smolvm").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "smolvm").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(Unavailable, match=sentence):
        SmolmachinesBackend(tmp_path).available()


# What runs in the guest, here in directories of the test's


INSIDE = ROOT / "botbottle" / "inside"


def test_the_guest_is_prepared(tmp_path: Path) -> None:
    (tmp_path / "bundle.pem").write_text("trusted")
    (tmp_path / "passwd").write_text("root:x:0:0::/root:/bin/sh\n")
    wanted = {
        "uid": os.getuid(),
        "gid": os.getgid(),
        "home": f"{tmp_path}/home/agent",
        "directories": [f"{tmp_path}/run", f"{tmp_path}/run/files"],
        "files": [f"{tmp_path}/run/log"],
        "accounts": {f"{tmp_path}/passwd": "agent:x:1000:1000::/home/agent:/bin/sh\n"},
        "sockets": [f"{tmp_path}/nosuch"],
        "copies": [[f"{tmp_path}/bundle.pem", f"{tmp_path}/etc/ssl/cert.pem"]],
    }
    script = (INSIDE / "vm_setup.py").read_text()
    subprocess.run([sys.executable, "-I", "-S", "-c", script, json.dumps(wanted)], check=True)
    assert (tmp_path / "etc" / "ssl" / "cert.pem").read_text() == "trusted"
    assert (tmp_path / "passwd").read_text().splitlines()[1].startswith("agent:")
    assert (tmp_path / "home" / "agent").is_dir()
    assert (tmp_path / "run" / "log").read_text() == ""


def test_staged_files_are_placed_and_links_not_followed(tmp_path: Path) -> None:
    (tmp_path / "0").write_text("content")
    target = tmp_path / "home" / "deep" / "file"
    index = [{"name": "0", "path": str(target), "mode": 0o600}]
    (tmp_path / "index.json").write_text(json.dumps(index))
    (tmp_path / "then.py").write_text("print('then')")
    command = [sys.executable, "-I", "-S", INSIDE / "install_files.py", tmp_path, tmp_path / "then.py"]
    assert subprocess.run(command, check=True, capture_output=True).stdout == b"then\n"
    assert (target.read_text(), target.stat().st_mode & 0o777) == ("content", 0o600)
    target.unlink()
    target.symlink_to(tmp_path / "elsewhere")
    assert subprocess.run(command, check=False, capture_output=True).returncode != 0
    assert not (tmp_path / "elsewhere").exists()


def test_a_launched_program_is_asked_to_end(tmp_path: Path) -> None:
    log, pid = tmp_path / "log", tmp_path / "pid"
    log.touch()
    (tmp_path / "main.py").write_text("import time\nprint('up', flush=True)\ntime.sleep(1000)")
    launch = [sys.executable, "-I", "-S", INSIDE / "run_logged.py", log, pid, tmp_path / "main.py"]
    ask = [sys.executable, "-I", "-S", INSIDE / "terminate.py", pid]
    with subprocess.Popen(launch) as process:
        wait_until(log.read_text, what="its output")
        subprocess.run([*ask, "0.1"], check=True)
        assert process.wait(PATIENCE) == -15
    assert log.read_text() == "up\n"
    started = time.monotonic()
    subprocess.run([*ask, str(2 * PATIENCE)], check=True)
    assert time.monotonic() - started < PATIENCE, "nobody is there to be waited for"
