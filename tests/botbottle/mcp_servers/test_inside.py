"""The small programs that run in the bottle, run here by themselves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from botbottle.mcp_servers.process import BECOME, END, REMOVE
from tests.support.timeouts import PATIENCE, wait_until

PYTHON = [sys.executable, "-I", "-S", "-c"]
FACTS = (
    "import json,os,resource as r,sys;"
    "print(json.dumps({'data': r.getrlimit(r.RLIMIT_DATA)[0], 'pids': r.getrlimit(r.RLIMIT_NPROC)[0],"
    "'cpus': len(os.sched_getaffinity(0)), 'cwd': os.getcwd(), 'path': os.environ['PATH'],"
    "'key': os.environ.get('KEY'), 'rest': sys.stdin.read(), 'argv': sys.argv}))"
)


def become(order: dict[str, Any], rest: str = "") -> subprocess.CompletedProcess[str]:
    text = json.dumps({"env": {}, "path": "", "cwd": "/", **order})
    return subprocess.run(
        [*PYTHON, BECOME], input=f"{len(text):08d}{text}{rest}", capture_output=True, text=True,
        timeout=PATIENCE, check=False, env={"PATH": "/usr/bin:/bin", "KEY": "old"},
    )  # fmt: skip


def test_it_becomes_the_program_within_its_limits_and_leaves_it_its_input(tmp_path: Any) -> None:
    limits = {"data_bytes": 2**30, "processes": 4000, "cpus": 1}
    order = {"argv": [sys.executable, "-c", FACTS, "x y"], "env": {"KEY": "new"}, "path": "/first", **limits}
    ran = become({**order, "cwd": str(tmp_path / "made")}, rest="the first message\n")
    hello, facts = ran.stdout.splitlines()
    assert json.loads(hello) == {"bot-bottle": "here"}
    assert json.loads(facts) == {
        "data": 2**30, "pids": 4000, "cpus": 1, "cwd": str(tmp_path / "made"), "path": "/first:/usr/bin:/bin",
        "key": "new", "rest": "the first message\n", "argv": ["-c", "x y"],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("argv", "cwd", "code", "says"),
    [
        (["no-such-program"], "/", 127, "not found in this bottle"),
        (["/etc/passwd"], "/", 126, "cannot be executed"),
        (["true"], "/proc/none", 127, "not found"),
    ],
)
def test_what_cannot_be_started_says_so(argv: list[str], cwd: str, code: int, says: str) -> None:
    ran = become({"argv": argv, "cwd": cwd})
    assert (ran.returncode, says in ran.stderr) == (code, True), ran.stderr


@pytest.mark.parametrize("sent", ["", "0000", "00000050{"])
def test_an_order_that_breaks_off_starts_nothing(sent: str) -> None:
    ran = subprocess.run(
        [*PYTHON, BECOME], input=sent, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert ran.returncode != 0 and ran.stdout == '{"bot-bottle":"here"}\n'


def test_a_server_ends_with_everything_it_forked_and_nobody_else() -> None:
    forks = "import os,signal,time;signal.signal(15,signal.SIG_IGN);os.fork() or os.setsid();time.sleep(600)"
    mark = f"BOT_BOTTLE_SERVER=test-{os.getpid()}"
    name, _, value = mark.partition("=")
    server = subprocess.Popen([sys.executable, "-c", forks], env={name: value}, start_new_session=True)
    other = subprocess.Popen(
        [sys.executable, "-c", "import time;time.sleep(600)"], env={name: f"{value}-other"}
    )
    try:
        wait_until(lambda: len(marked(mark)) == 2, what="both of them")
        subprocess.run([*PYTHON, END, mark, "0.1"], timeout=PATIENCE, check=True)
        assert server.wait(PATIENCE) == -9
        assert marked(mark) == []
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def removing(*paths: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PYTHON, REMOVE, *map(str, paths)], capture_output=True, text=True, timeout=PATIENCE, check=False
    )


def test_a_tree_goes_with_what_was_closed_in_it_and_without_what_its_links_lead_to(tmp_path: Path) -> None:
    tree, precious = tmp_path / "tree", tmp_path / "precious"
    (tree / "closed" / "below").mkdir(parents=True)
    (tree / "closed" / "below" / "file").write_text("x")
    (tree / "closed" / "below").chmod(0)
    (tree / "closed").chmod(0o500)
    precious.mkdir(mode=0o755)
    (precious / "kept").write_text("x")
    (tree / "link").symlink_to(precious)
    (tmp_path / "root").symlink_to(precious)
    ran = removing(tree, tmp_path / "root", tmp_path / "none")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]
    assert (precious / "kept").exists() and precious.stat().st_mode & 0o777 == 0o755


def test_what_cannot_be_removed_is_an_error() -> None:
    ran = removing(Path("/proc/self/status"))
    assert ran.returncode == 1 and "/proc/self/status" in ran.stderr


def marked(mark: str) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # ended meanwhile
            if mark.encode() in (process / "environ").read_bytes().split(b"\0"):
                found.append(process.name)
    return found
