"""Agents' Dockerfiles built by a real engine: what a build reaches, what bounds it, what it leaves."""

from __future__ import annotations

import io
import socket
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import docker
import pytest

from botbottle.backends import docker_build
from botbottle.backends.accounts import sandbox_labels, sandbox_name
from botbottle.backends.base import BackendError
from botbottle.backends.docker import DockerBackend
from botbottle.backends.docker_build import Bounds
from botbottle.dockerfiles import digest_of
from tests.backends.images import PYTHON_IMAGE, SHELL_IMAGE
from tests.dockerd import Engine, docker_host, engine

__all__ = ["docker_host", "engine"]
pytestmark = [pytest.mark.process, pytest.mark.usefixtures("docker_host")]
SLUG = "demo"
FORGED = "LABEL bot-bottle.dockerfile=forged bot-bottle.slug=other bot-bottle.home=other\n"


class Builds:
    def __init__(self, home: Path, client: docker.DockerClient) -> None:
        self.home, self.client = home, client
        self.sockets = home / "bottles" / SLUG / "sockets"
        self.sockets.mkdir(parents=True)
        self.said: list[str] = []

    def build(self, *lines: str, base: str = PYTHON_IMAGE, **more: Bounds) -> str:
        text = f"FROM {base}\n" + "".join(f"{line}\n" for line in lines)
        return docker_build.rebuild(self.client, self.home, SLUG, text, self.said.append, **more)

    def leftovers(self) -> list[str]:
        return [container.name for container in self.client.containers.list(all=True)]


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
    ("line", "bounds", "sentence"),
    [
        ("RUN sleep 600", Bounds(seconds=3), "took longer than"),
        ("RUN while true; do echo 0123456789 >> /big; cat /big /big >> /big2; done",
         Bounds(written=5 * 1024**2), "wrote more than 0.0049 GiB"),
    ],
)  # fmt: skip
def test_a_build_is_bounded(builds: Builds, line: str, bounds: Bounds, sentence: str) -> None:
    with pytest.raises(BackendError, match=sentence):
        builds.build(line, bounds=bounds)


def test_a_build_that_takes_too_much_memory_is_ended(builds: Builds) -> None:
    with pytest.raises(BackendError, match="non-zero code: 137"):
        builds.build(
            "RUN python3 -c \"b'x' * 500_000_000; print('had it')\"", bounds=Bounds(memory=100 * 1024**2)
        )


def test_a_step_has_only_so_many_processes(builds: Builds) -> None:
    limit = "cat /sys/fs/cgroup/pids.max /sys/fs/cgroup/pids/pids.max 2>/dev/null"
    bounded = f"until test $({limit}) = 40; do sleep 1; done"
    with pytest.raises(BackendError, match=r"(?s)not built.*can't fork"):
        builds.build(
            f"RUN {bounded}; for n in $(seq 60); do sleep 9 & done", bounds=Bounds(seconds=60, processes=40)
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
    before = docker_build.keep(builds.client, PYTHON_IMAGE, repository)
    assert builds.client.images.get(before).id == builds.client.images.get(PYTHON_IMAGE).id
    made = [builds.build(f"RUN echo {number} > /number") for number in range(3)]
    assert docker_build.keep(builds.client, made[0], repository) == made[0], "it has a name already"
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
