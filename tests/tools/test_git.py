"""git over https: clone, push and fetch on the allowed repository, and no other."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.requirements import require
from tests.tools.workshop import BARE, INSPECTED, ROUTES, Bottle, Finished, git_backend

pytestmark = [pytest.mark.process, pytest.mark.tools]
LARGER_THAN_GITS_BUFFER = 3 * 1024 * 1024  # a push over 1 MB is sent in chunks, after a probe


@pytest.fixture
def repositories(bottle: Bottle) -> Path:
    """Two fresh bare repositories with one commit each: `project.git` and `other.git`."""
    require(git_backend(), "git http-backend", "apt-get install git")
    team = bottle.workshop.repositories / "team"
    shutil.rmtree(team, ignore_errors=True)
    for name in ("project", "other"):
        seed = bottle.home / f"{name}-seed"
        here(seed.parent, "init", "--quiet", "--initial-branch=main", str(seed))
        (seed / "README").write_text(f"the {name}\n")
        here(seed, "add", "README")
        here(seed, "commit", "--quiet", "--message", "first")
        here(seed.parent, "clone", "--quiet", "--bare", str(seed), str(team / f"{name}.git"))
        here(team / f"{name}.git", "config", "http.receivepack", "true")
    return team


def here(folder: Path, *arguments: str) -> str:
    """git on this machine, without the network."""
    command = ["git", "-c", "user.name=Agent", "-c", "user.email=agent@example.com", *arguments]
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1"}
    return subprocess.run(
        command, cwd=folder, env=environment, check=True, capture_output=True, text=True
    ).stdout.strip()


def git(bottle: Bottle, *arguments: str, cwd: Path | None = None) -> Finished:
    return bottle.run("git", *arguments, cwd=cwd, GIT_TERMINAL_PROMPT="0", GIT_CONFIG_NOSYSTEM="1")


@pytest.mark.parametrize("host", [INSPECTED, BARE])
@pytest.mark.parametrize("size", [10, LARGER_THAN_GITS_BUFFER])
def test_clone_push_and_fetch(bottle: Bottle, repositories: Path, host: str, size: int) -> None:
    url = f"https://{host}/team/project.git"
    done = git(bottle, "clone", "--quiet", url, "work")
    assert done.code == 0, done.err
    work = bottle.home / "work"
    assert (work / "README").read_text() == "the project\n"
    (work / "new").write_bytes(os.urandom(size))
    here(work, "add", "new")
    here(work, "commit", "--quiet", "--message", "second")
    done = git(bottle, "push", "--quiet", "origin", "main", cwd=work)
    assert done.code == 0, done.err
    assert here(repositories / "project.git", "rev-parse", "main") == here(work, "rev-parse", "HEAD")
    assert git(bottle, "fetch", "--quiet", "origin", cwd=work).code == 0


def test_a_clone_of_another_repository_fails_with_403(bottle: Bottle, repositories: Path) -> None:
    done = git(bottle, "clone", f"https://{INSPECTED}/team/other.git", "work")
    assert done.code == 128
    assert "error: 403" in done.err
    assert bottle.workshop.upstreams[INSPECTED].seen == []


def test_a_path_can_be_opened_for_fetching_only(bottle: Bottle, repositories: Path) -> None:
    lab, repository = bottle.workshop.lab, "/team/project.git"
    fetching = {**ROUTES[0], "path_allowlist": [f"{repository}/git-upload-pack", f"{repository}/info"]}
    lab.publish("agent-a", [fetching, *ROUTES[1:]])
    try:
        cloned = git(bottle, "clone", f"https://{INSPECTED}{repository}", "work")
        here(bottle.home / "work", "commit", "--quiet", "--allow-empty", "--message", "second")
        pushed = git(bottle, "push", "origin", "main", cwd=bottle.home / "work")
    finally:
        lab.publish("agent-a", ROUTES)
    assert cloned.code == 0, cloned.err
    assert (pushed.code, "403" in pushed.err) == (1, True), pushed.err
    assert not any(
        line.startswith("POST") and "receive" in line for line in bottle.workshop.upstreams[INSPECTED].seen
    )
