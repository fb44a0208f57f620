"""git over https: clone, push and fetch on the allowed repository, and no other."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from egress.policy.asks import parse_egress_ask
from tests.support.requirements import require
from tests.support.token_examples import EXAMPLES
from tests.support.tool_env import BARE, DENIED, INSPECTED, ROUTES, Bottle, Finished, git_backend

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


@pytest.mark.parametrize(
    ("host", "reason", "sentence"),
    [
        (INSPECTED, "path", f"is not under a path that is allowed on {INSPECTED}."),
        (DENIED, "no-route", f"No route allows {DENIED}. Ask for one with egress-block."),
    ],
)
def test_a_refused_clone_shows_why_and_how_to_ask(
    bottle: Bottle, repositories: Path, host: str, reason: str, sentence: str
) -> None:
    done = git(bottle, "clone", f"https://{host}/team/other.git", "work")
    assert (done.code, "error: 403" in done.err) == (128, True), done.err
    why, how = [line for line in done.err.splitlines() if line.startswith("remote: ")]
    assert why.startswith(f"remote: egress refused ({reason}): ") and why.endswith(sentence)
    tool, arguments = how.removeprefix("remote: To ask for it, call the tool ").split(" with ", 1)
    asked = json.loads(arguments)
    assert asked.pop("justification").endswith(f"was refused ({reason}).")
    assert (tool, parse_egress_ask(asked)) == ("egress-block", asked)
    paths = ["/team/other.git/git-upload-pack", "/team/other.git/info/refs"]
    assert asked == {"host": host, "path_allowlist": paths, "methods": ["GET", "POST"]}
    assert bottle.workshop.upstreams[INSPECTED].seen == []


@pytest.mark.parametrize("errand", ["clone", "push"])
def test_what_a_refusal_says_to_ask_for_is_enough(bottle: Bottle, repositories: Path, errand: str) -> None:
    lab, url = bottle.workshop.lab, f"https://{INSPECTED}/team/other.git"
    arguments = ("clone", "--quiet", url, "work")
    if errand == "push":
        here(bottle.home, "clone", "--quiet", str(repositories / "other.git"), "work")
        here(bottle.home / "work", "commit", "--quiet", "--allow-empty", "--message", "second")
        arguments = ("-C", "work", "push", "--quiet", url, "main")
    refused = git(bottle, *arguments).err.splitlines()
    how = next(line for line in refused if line.startswith("remote: To ask for it"))
    asked = json.loads(how.split(" with ", 1)[1])
    lab.publish("agent-a", [{**ROUTES[0], **{name: asked[name] for name in ("path_allowlist", "methods")}}])
    try:
        done = git(bottle, *arguments)
    finally:
        lab.publish("agent-a", ROUTES)
    assert done.code == 0, done.err


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


def pushed(bottle: Bottle, repositories: Path, **files: bytes) -> Finished:
    """The outcome of a push of one commit with these files, in folders of which `__` stands for the slash."""
    work = bottle.home / "work"
    if not work.exists():
        here(bottle.home, "clone", "--quiet", str(repositories / "project.git"), "work")
        here(work, "remote", "set-url", "origin", f"https://{INSPECTED}/team/project.git")
    for name, content in files.items():
        path = work / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    here(work, "add", "--all")
    here(work, "commit", "--quiet", "--message", "settings")
    return git(bottle, "push", "origin", "main", cwd=work)


@pytest.mark.parametrize("size", [10, LARGER_THAN_GITS_BUFFER])
def test_a_push_of_a_secret_is_refused_with_the_name_of_the_file(
    bottle: Bottle, repositories: Path, size: int
) -> None:
    before, token = here(repositories / "project.git", "rev-parse", "main"), EXAMPLES["github-token"]
    files = {"deploy__prod__env": f"TOKEN={token}\n".encode(), "other": os.urandom(size)}
    done = pushed(bottle, repositories, **files)
    assert done.code == 1, done.err
    told = " ".join(done.err.split())
    assert "remote: egress refused (dlp): " in told and "(github-token), in deploy/prod/env" in told, done.err
    assert "Take it out of every commit that is sent." in told
    assert "! [remote rejected] main -> main (egress refused (dlp): deploy/prod/env)" in told
    assert token not in done.everything
    assert here(repositories / "project.git", "rev-parse", "main") == before
    record = bottle.workshop.refusals(INSPECTED)[-1]
    assert record["finding"] == {"kind": "github-token", "where": "body", "file": "deploy/prod/env"}
    assert (record["reason"], record["status"], record.get("ask")) == ("dlp", 200, None)


def test_the_same_work_without_the_secret_can_be_pushed(bottle: Bottle, repositories: Path) -> None:
    token = EXAMPLES["github-token"].encode()
    assert pushed(bottle, repositories, env=b"TOKEN=" + token).code == 1
    assert pushed(bottle, repositories, env=b"TOKEN=").code == 1, "it is in the history"
    work = bottle.home / "work"
    here(work, "reset", "--quiet", "--soft", "origin/main")
    here(work, "commit", "--quiet", "--message", "clean")
    done = git(bottle, "push", "origin", "main", cwd=work)
    assert done.code == 0, done.err


def test_a_secret_in_a_changed_file_is_found_in_what_the_change_adds(
    bottle: Bottle, repositories: Path
) -> None:
    """The file's old version, and with it its name, is not in the push."""
    lines = [f"setting_{number} = {os.urandom(8).hex()}\n".encode() for number in range(500)]
    assert pushed(bottle, repositories, settings=b"".join(lines)).code == 0
    lines[250] = EXAMPLES["npm-token"].encode() + b"\n"
    done = pushed(bottle, repositories, settings=b"".join(lines))
    assert done.code == 1, done.err
    told = re.sub(r"\s+(remote: )?", " ", done.err)
    name = here(bottle.home / "work", "rev-parse", "HEAD~1:settings")
    assert f"a change of git object {name}" in told, done.err
    command = re.search(r"\(git (log [^)]*) names the file\)", told)
    assert command is not None
    assert "settings" in here(bottle.home / "work", *command[1].split()).splitlines()
