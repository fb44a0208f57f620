"""What a look at a workspace tells: by the program that runs beside it, and how little of it is believed."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from botbottle.launch import canary
from tests.support import ROOT

PROGRAM = ROOT / "botbottle" / "inside" / "workspace_state.py"


def look(workspace: Path, archive: Path, **environment: str) -> dict[str, Any]:
    ran = subprocess.run(
        [sys.executable, "-I", "-S", str(PROGRAM), str(workspace), str(archive)],
        capture_output=True, text=True, check=True, timeout=60, env={"PATH": "/usr/bin:/bin", **environment},
    )  # fmt: skip
    return dict(json.loads(ran.stdout))


def git(workspace: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.com"]
    subprocess.run(["git", *identity, *arguments], cwd=workspace, check=True, capture_output=True)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    git(workspace, "init", "-q", "-b", "topic")
    (workspace / "kept").write_text("1")
    (workspace / "gone").write_text("1")
    git(workspace, "add", "-A")
    git(workspace, "commit", "-qm", "first")
    return workspace


def test_branch_commit_and_changes_are_told_and_packed(workspace: Path, tmp_path: Path) -> None:
    (workspace / "kept").write_text("2")
    (workspace / "gone").unlink()
    (workspace / "new dir").mkdir()
    (workspace / "new dir" / "file\nname").write_text("3")
    state = look(workspace, tmp_path / "a.tar.gz")
    assert (state["branch"], len(state["commit"])) == ("topic", 40)
    assert sorted(state["changed"]) == ["gone", "kept", "new dir/file\nname"]
    assert (state["changes"], state["left_out"]) == (3, 0)
    with tarfile.open(tmp_path / "a.tar.gz") as packed:
        assert sorted(packed.getnames()) == ["kept", "new dir/file\nname"]


def test_what_is_too_large_is_left_out(workspace: Path, tmp_path: Path) -> None:
    with (workspace / "huge").open("wb") as file:
        file.truncate(65 * 1024**2)
    (workspace / "small").write_text("x")
    state = look(workspace, tmp_path / "a.tar.gz")
    assert (state["changes"], state["left_out"]) == (2, 1)
    with tarfile.open(tmp_path / "a.tar.gz") as packed:
        assert packed.getnames() == ["small"]


def test_without_git_the_branch_is_told(workspace: Path, tmp_path: Path) -> None:
    state = look(workspace, tmp_path / "a.tar.gz", PATH="/nowhere")
    assert state["branch"] == "topic"
    assert "git" in state["unknown"]


def test_without_a_repository_there_is_no_branch(tmp_path: Path) -> None:
    assert look(tmp_path, tmp_path / "a.tar.gz")["branch"] == ""


@pytest.mark.parametrize(
    ("output", "state"),
    [
        ("", {"unknown": "the workspace could not be inspected"}),
        ("[1]", {"unknown": "the workspace could not be inspected"}),
        ("[" * 100_000, {"unknown": "the workspace could not be inspected"}),
        ('noise\n{"branch": "main", "changes": 1}\n', {"branch": "main", "changes": 1}),
        ('{"branch": ["x"], "changes": true, "more": 1, "changed": "x"}', {}),
        ('{"branch": "' + "x" * 999 + '"}', {"branch": "x" * 300}),
    ],
)
def test_only_what_can_be_shown_is_taken_from_the_answer(output: str, state: dict[str, Any]) -> None:
    assert canary._state(output) == state


def test_an_archive_that_is_a_link_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    (tmp_path / "made").symlink_to(tmp_path / "secret")
    assert not canary._move_out(tmp_path / "made", tmp_path / "kept")
    assert not (tmp_path / "kept").exists()
