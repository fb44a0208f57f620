"""What of the host is copied for a server, and what is refused."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from botbottle.manifest.mcp_servers import Spec
from botbottle.mcp_servers import staging


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    source = tmp_path / "roots" / "server"
    (source / "package").mkdir(parents=True)
    (source / "server.py").write_text("print()")
    (source / "package" / "run.sh").write_text("#!/bin/sh")
    (source / "package" / "run.sh").chmod(0o755)
    return source


def copied(source: Path, tmp_path: Path, *, writable: bool = False) -> dict[str, str]:
    target = tmp_path / "copy"
    staging.copy(source, target, writable=writable)
    return {
        str(path.relative_to(target)): oct(path.lstat().st_mode & 0o777)
        for path in sorted(target.rglob("*"))
        if not path.is_dir()
    }


def test_it_copies_what_is_wanted_and_leaves_out_what_is_not(tree: Path, tmp_path: Path) -> None:
    for name in (".git", "__pycache__", ".pytest_cache", ".venv", "package/__pycache__"):
        (tree / name).mkdir()
        (tree / name / "pyvenv.cfg").write_text("x")
    (tree / "link").symlink_to("package/run.sh")
    (tree / "package" / "up").symlink_to("../server.py")
    assert copied(tree, tmp_path) == {
        "link": "0o777", "package/run.sh": "0o555", "package/up": "0o777", "server.py": "0o444"
    }  # fmt: skip


def test_a_writable_copy_is_still_a_copy(tree: Path, tmp_path: Path) -> None:
    assert copied(tree, tmp_path, writable=True) == {"package/run.sh": "0o755", "server.py": "0o644"}
    (tmp_path / "copy" / "server.py").write_text("changed")
    assert (tree / "server.py").read_text() == "print()"


def _socket(tree: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(tree / "s"))


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "a link to an absolute path": (lambda tree: (tree / "l").symlink_to("/etc/passwd"), "leads out"),
    "a link upwards": (lambda tree: (tree / "l").symlink_to("../../secret"), "leads out"),
    "a link up and down": (
        lambda tree: (tree / "package" / "l").symlink_to("../package/../../x"),
        "behind a name",
    ),
    "a link that only ends inside": (
        lambda tree: (tree / "l").symlink_to("../server/server.py"),
        "leads out",
    ),
    "a link with two slashes": (lambda tree: (tree / "l").symlink_to("//etc/passwd"), "leads out"),
    "a link that leads out by another": (
        lambda tree: [
            (tree / "package" / "er").mkdir(),
            (tree / "package" / "er" / "s").symlink_to("../.."),
            (tree / "z").symlink_to("package/er/s/../../.."),
        ],
        "behind a name",
    ),
    "a pipe": (lambda tree: os.mkfifo(tree / "p"), "a socket, a pipe or a device"),
    "a socket": (_socket, "a socket, a pipe or a device"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_refuses(tree: Path, tmp_path: Path, name: str) -> None:
    make, says = REFUSED[name]
    make(tree)
    with pytest.raises(staging.Refused, match=says):
        copied(tree, tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes devices")
def test_it_refuses_a_device(tree: Path, tmp_path: Path) -> None:
    os.mknod(tree / "null", 0o020666, os.makedev(1, 3))
    with pytest.raises(staging.Refused, match="a socket, a pipe or a device"):
        copied(tree, tmp_path)


@pytest.mark.parametrize(
    ("bound", "says"),
    [(("MOST_FILES", 2), "more than 2 files"), (("MOST_BYTES", 8), "MiB"), (("MOST_DEPTH", 0), "nested")],
)
def test_it_refuses_huge_trees(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: tuple[str, int], says: str
) -> None:
    monkeypatch.setattr(staging, *bound)
    with pytest.raises(staging.Refused, match=says):
        copied(tree, tmp_path)


def test_only_what_lies_under_a_root_is_read(tree: Path, tmp_path: Path) -> None:
    root = str(tmp_path / "roots")
    assert staging.check_root(str(tree), [root], []) == tree
    (tmp_path / "roots" / "leaves").symlink_to("/usr/share")
    for path in ("/etc", f"{root}/../..", f"{root}/leaves"):
        with pytest.raises(staging.Refused, match="allowed roots"):
            staging.check_root(path, [root], [])
    for path, says in ((f"{root}/none", "Make it"), (str(tree / "server.py"), "not a directory")):
        with pytest.raises(staging.Refused, match=says):
            staging.check_root(path, [root], [])
    with pytest.raises(staging.Refused, match="agent may write"):
        staging.check_root(str(tree), [root], [str(tree.parent)])


def test_removing_follows_no_link_of_the_agents(tmp_path: Path) -> None:
    workspace, precious = tmp_path / "workspace", tmp_path / "precious"
    (precious / "servers" / "a").mkdir(parents=True)
    workspace.mkdir()
    (workspace / ".bot-bottle").symlink_to(precious)
    staging.remove(str(workspace), "a")
    assert (precious / "servers" / "a").is_dir()
    (workspace / ".bot-bottle").unlink()
    (workspace / ".bot-bottle" / "servers" / "a").mkdir(parents=True)
    (workspace / ".bot-bottle" / "servers" / "b").mkdir()
    staging.remove(str(workspace), "a")
    assert [path.name for path in (workspace / ".bot-bottle" / "servers").iterdir()] == ["b"]
    staging.remove(str(workspace), "b")
    assert list(workspace.iterdir()) == []


@pytest.mark.parametrize(
    ("word", "becomes"),
    [
        ("python3", "python3"),
        ("{host}", "{code}"),
        ("{host}/server.py", "{code}/server.py"),
        ("{host}/.venv/bin/python", "{venv}/bin/python"),
        (".venv/bin/tool", "{venv}/bin/tool"),
        ("venv/bin/python", "{venv}/bin/python"),
        ("{host}-other/x", "{host}-other/x"),
        ("--root={host}", "--root={host}"),
    ],
)
def test_the_hosts_paths_become_the_bottles(tree: Path, word: str, becomes: str) -> None:
    place = staging.Place("s")
    given = {"host": str(tree), "code": place.code, "venv": place.venv}
    spec = Spec("s", word.format(**given), (word.format(**given),), host_path=str(tree))
    made = staging.launch(spec, place, tree, {"A": word.format(**given)})
    assert (made.argv, made.env) == ([becomes.format(**given)] * 2, {"A": becomes.format(**given)})
    assert (made.cwd, made.path) == ("/workspace/.bot-bottle/servers/s/code", "")
