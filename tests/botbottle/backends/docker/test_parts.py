"""What needs no engine: which fetches a rebuild refuses, times, accounts, variables, whose id it is."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from botbottle.backends import image_builders, quotas
from botbottle.backends.accounts import User, account_files
from botbottle.backends.base import Unavailable
from botbottle.backends.docker import sources
from botbottle.backends.docker.backend import DockerBackend, _runs_something
from botbottle.backends.docker.container import Staged, engine_user, environment, settings
from botbottle.backends.docker.engine import moment
from botbottle.backends.docker.images import refuse_fetches
from botbottle.core.plan_types import BackendError, Limits, Plan, Variable


class Image:
    def __init__(self, **config: object) -> None:
        self.id, self.attrs = "sha256:0", {"Config": config or None}


IMAGES = {
    "debian:12": Image(),
    "tools": Image(Volumes={"/data": {}}),
    "trap": Image(OnBuild=["ADD https://example.com/x /x"]),
}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("FROM debian:12\nRUN echo ADD https://example.com\n", {"debian:12"}),
        ("\ufeffFROM debian:12\n", {"debian:12"}),
        ("FROM scratch\n", set()),
        ("FROM debian:12 AS base\nFROM base\nCOPY --from=0 /a /b\nCOPY --from=BASE /a /b\n", {"debian:12"}),
        ("FROM debian:12\nCOPY --from=tools /a /b\n", {"debian:12", "tools"}),
    ],
)
def test_what_is_here_is_built(text: str, names: set[str]) -> None:
    assert set(refuse_fetches(text, IMAGES.get)) == names


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("FROM evil\n", "line 1: the Docker engine has no image 'evil'"),
        ("FROM evil AS evil\n", "line 1: .* no image 'evil'"),
        ("FROM debian:12 AS a\nFROM evil AS a\n", "line 2: .* no image 'evil'"),
        ("FROM debian:12\nCOPY --from=evil /a /b\n", "line 2: .* no image 'evil'"),
        ("FROM debian:12\nCOPY --chown=1 --from=evil /a /b\n", "line 2: .* no image 'evil'"),
        ("FROM debian:12\nCOPY --from=late /a /b\nFROM debian:12 AS late\n", "line 2: .* no image 'late'"),
        ("FROM debian:12 AS evil\nCOPY --from=evil /a /b\n", "line 2: .* no image 'evil'"),
        ("FROM debian:12\nRUN \\\n# c\n\n  true\nADD x y\n", "line 6: a rebuild takes no ADD"),
        ("FROM tools\n", r"line 1: the image 'tools' has volumes \(/data\)"),
        ("FROM trap\n", "line 1: the image 'trap' has ONBUILD steps"),
        ("NOTHING\n", "cannot be built: line 1"),
    ],
)
def test_what_the_engine_would_fetch_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(BackendError, match=sentence):
        refuse_fetches(text, IMAGES.get)


def test_a_name_moved_when_it_stood_for_another_image() -> None:
    last = sources.read(sources.written({"a:1": "sha256:1", "localhost:5000/b@sha256:7": "sha256:2"}))
    assert last == {"a:1": "sha256:1", "localhost:5000/b@sha256:7": "sha256:2"}
    assert list(sources.moved(last, {**last, "new": "sha256:9"})) == []
    (told,) = sources.moved(last, {"a:1": "sha256:3"})
    assert told.startswith("moved tag: a:1 ") and told.endswith(": 3, so far 1")
    assert sources.read("") == sources.read("junk,=") == {}


def test_an_engine_that_says_nothing_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s"
    monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(path))
        silent.listen()
        begun = time.monotonic()
        for backend in ("docker", "local"):
            with pytest.raises(Unavailable, match="does not answer"):
                image_builders.images(backend, tmp_path, "demo").compare("FROM a\n", "", 0.2)
        assert time.monotonic() - begun < 10


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0001-01-01T00:00:00Z", None),
        ("", None),
        ("1970-01-01T00:00:01Z", 1.0),
        ("1970-01-01T00:00:01.500000000Z", 1.5),
        ("1970-01-01T00:00:01.5Z", 1.5),
        ("1970-01-01T02:00:01.25+02:00", 1.25),
        ("1969-12-31T23:00:01.25-01:00", 1.25),
    ],
)
def test_the_engines_times_are_read(text: str, seconds: float | None) -> None:
    assert moment(text) == seconds


def test_the_agents_account_takes_the_place_of_its_id_and_its_name() -> None:
    made = account_files(
        User(1000, 1000),
        "root:x:0:0::/root:/bin/sh\nnode:x:1000:1000::/home/node:/bin/sh\nagent:x:7:7::/:/bin/sh\njunk\n",
        None,
    )
    assert made["passwd"] == ("root:x:0:0::/root:/bin/sh\nagent:x:1000:1000:agent:/home/agent:/bin/sh\n")
    assert made["group"] == "agent:x:1000:\n"


@pytest.mark.parametrize(
    ("limits", "pids", "files"),
    [(Limits(), quotas.processes(), quotas.FILES), (Limits(pids=20, files=100), 20, 100)],
)
def test_a_container_has_limits_of_processes_and_descriptors(limits: Limits, pids: int, files: int) -> None:
    plan = Plan("demo", "docker", "/x", limits=limits)
    wanted = settings(plan, User(1000, 1000), Staged(Path("/x")), {}, tty=False)
    (ulimit,) = wanted["ulimits"]
    assert (wanted["pids_limit"], ulimit["Name"], ulimit["Hard"]) == (pids, "nofile", files)


def test_a_rootless_engines_root_is_the_operator(tmp_path: Path) -> None:
    assert engine_user(tmp_path, ["name=seccomp,profile=default", "name=rootless"]) == User(0, 0)
    assert engine_user(Path("/"), ["name=seccomp,profile=default"]) == User(1000, 1000)


def test_a_manifests_own_path_wins_over_the_images() -> None:
    plan = Plan("demo", "docker", "/x", variables={"PATH": Variable("/mine"), "A": Variable("plan")})
    variables = environment(plan.environment(), ["PATH=/image", "A=image", "B=image=b", "junk"])
    assert variables == {"PATH": "/mine", "A": "plan", "B": "image=b"}


def test_variables_that_a_killed_start_left_are_forgotten_and_those_of_one_that_goes_on_are_not(
    tmp_path: Path,
) -> None:
    backend = DockerBackend(tmp_path)
    variables = tmp_path / "bottles" / "demo" / "run" / "docker" / "variables.json"
    backend.tidy("demo")
    variables.parent.mkdir(parents=True)
    variables.touch()
    with backend._starting("demo"):
        DockerBackend(tmp_path).tidy("demo")
        assert variables.exists()
    variables.touch()
    backend.tidy("demo")
    assert not variables.exists()


class Listed:
    """A container whose processes are these."""

    def __init__(self, *commands: str) -> None:
        self.commands = commands

    def top(self) -> dict[str, list[list[str]]]:
        return {"Processes": [["1", command] for command in self.commands]}


@pytest.mark.parametrize(
    ("commands", "runs"),
    [
        ((), False),
        (("init.py -- agent",), False),
        (("init.py -- agent", "init.py -- agent"), False),  # not the command yet
        (("init.py -- agent", "[python3] <defunct>"), False),  # it could not be the command
        (("init.py -- agent", "[python3]"), False),  # the same, a moment before
        (("init.py -- agent", "agent"), True),
        (("init.py -- agent", "sh -c [ -e x ]"), True),
    ],
)
def test_a_command_runs_when_there_is_more_than_the_first_program(
    commands: tuple[str, ...], runs: bool
) -> None:
    assert _runs_something(Listed(*commands)) is runs
