"""Builds of Dockerfiles that agents wrote. Such a build can reach only the bottle's own proxy socket.

Trust boundary: the text and everything it runs are an agent's. The build shares the network of a gate, a
container with loopback and the bridge to the proxy, so the bottle's route table applies to it. Time, disk,
memory and processes are bounded; its context holds nothing of the host or of the workspace.
"""

from __future__ import annotations

import io
import os
import sys
import tarfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docker import DockerClient  # type: ignore[import-untyped]
from docker.errors import APIError, ImageNotFound, NotFound  # type: ignore[import-untyped]

from botbottle import inside
from botbottle.backends.accounts import sandbox_labels, sandbox_name
from botbottle.backends.base import Progress
from botbottle.backends.docker import images as docker_images
from botbottle.backends.docker import sources as docker_sources
from botbottle.backends.docker.container import _bind, _confinement, engine_user
from botbottle.backends.docker.engine import connected
from botbottle.core.interpreter import host_interpreter
from botbottle.core.plan_types import INIT_INSIDE, PROGRAMS_INSIDE, SOCKETS_INSIDE, BackendError, Mount, Plan
from botbottle.dockerfiles.build_rules import one_line_each
from botbottle.dockerfiles.parse import digest_of
from botbottle.provision.variables import proxy_variables

GATE_LABEL = "bot-bottle.gate"
_PROGRAMS = ("/usr", "/bin", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache")
# Engines predefine these, and leave them out of the image and its history.
_BUILD_ARGUMENTS = ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy")
_WATCH_SECONDS = 0.2
_MEASURE_SECONDS = 2.0
_GATE_SECONDS = 20.0
MOST_NAMES = 20  # compared for an operator who only views the page


@dataclass(frozen=True, slots=True)
class BuildLimits:
    seconds: float = 1800.0
    written: int = 8 * 1024**3  # bytes, by all steps together
    memory: int = 4 * 1024**3
    processes: int = 4096  # per step


USUAL = BuildLimits()


def rebuild(
    client: DockerClient,
    home: Path,
    slug: str,
    text: str,
    progress: Progress,
    *,
    last: Mapping[str, str] | None = None,
    limits: BuildLimits = USUAL,
) -> str:
    """Build a text and return the image's name; its label is the text's digest. Raises BackendError.

    `last` are the images that the one in force was built on; names that have moved since are reported.
    """
    sources = docker_images.refuse_fetches(text, lambda image: docker_sources.find(client, image))
    digest = digest_of(text)
    repository = sandbox_name(home, slug)
    name = f"{repository}:{digest[:12]}"
    if last is None:
        last = docker_sources.of_bottle(client, repository, "")
    for sentence in docker_sources.moved(last, sources):
        progress(sentence)
    with _gate(client, home, slug) as gate, _watched(gate, limits) as watch:
        try:
            docker_images.build(
                client,
                name,
                # The engine appends these to the text's own labels, so the text cannot forge them.
                {
                    **sandbox_labels(home, slug),
                    docker_images.DIGEST_LABEL: digest,
                    docker_sources.LABEL: docker_sources.written(sources),
                },
                progress,
                fileobj=_context(one_line_each(text)),
                custom_context=True,
                network_mode=f"container:{gate.id}",
                buildargs={
                    name: value for name, value in proxy_variables().items() if name in _BUILD_ARGUMENTS
                },
                container_limits={"memory": limits.memory, "memswap": limits.memory},
            )
        except BackendError as error:
            if watch.reason:
                raise BackendError(f"{watch.reason}\n{error}") from error
            raise
    if watch.reason:
        raise BackendError(watch.reason)
    verify(client, name, digest)
    return name


def compare(client: DockerClient, text: str, last: Mapping[str, str]) -> list[str]:
    """Report which names in the text a build would resolve differently than before, or fail on."""
    needed = docker_images.needed_images(text)
    names = list(dict.fromkeys(each.name for each in needed))
    found = {name: docker_sources.find(client, name) for name in names[:MOST_NAMES]}
    problems = [docker_images.problem_with(each, found[each.name]) for each in needed if each.name in found]
    present = {name: str(image.id) for name, image in found.items() if image is not None}
    sentences = [*docker_sources.moved(last, present)]
    sentences += [f"the build would fail: {problem}" for problem in problems if problem]
    if len(names) > MOST_NAMES:
        sentences.append(f"it names {len(names)} images, of which only {MOST_NAMES} were compared")
    return sentences


def verify(client: DockerClient, name: str, digest: str) -> None:
    """Raises BackendError unless the image was built from the text with this digest."""
    image = docker_sources.find(client, name)
    if image is None:
        raise BackendError(f"The image {name} is gone. Build it again.")
    if image.labels.get(docker_images.DIGEST_LABEL) != digest:
        raise BackendError(f"The image {name} was not built from the approved Dockerfile. Build it again.")


def retain(client: DockerClient, image: str, repository: str) -> str:
    """Return a name under which the present image stays. Raises BackendError when it has none."""
    found = docker_sources.find(client, image)
    if found is None:
        raise BackendError(f"The image {image!r} is gone, and cannot be retained.")
    own = [tag for tag in found.tags if tag.startswith(f"{repository}:") and not tag.endswith(":latest")]
    if own:
        return str(sorted(own)[0])
    tag = f"before-{found.id.removeprefix('sha256:')[:12]}"
    found.tag(repository, tag)
    return f"{repository}:{tag}"


def prune(client: DockerClient, repository: str, retained: set[str]) -> list[str]:
    """Remove the repository's other names, and images that nothing else uses. Returns the names."""
    removed = []
    for image in client.images.list(name=repository):
        for tag in image.tags:
            if tag.startswith(f"{repository}:") and tag not in retained and not tag.endswith(":latest"):
                with suppress(APIError):  # a container still uses it
                    client.images.remove(tag, noprune=False)
                    removed.append(tag)
    return removed


def clear(client: DockerClient, home: Path, slug: str) -> None:
    """Remove what a killed build left running."""
    with suppress(NotFound):
        client.containers.get(_gate_name(home, slug)).remove(force=True, v=True)


def _gate_name(home: Path, slug: str) -> str:
    """The gate's name, which no bottle has: theirs begin with the mark of their home."""
    return sandbox_name(home, slug).replace("bot-bottle-", "bot-bottle-gate-", 1)


class DockerImages:
    """The images of one bottle; implements image_builders.Images."""

    def __init__(self, home: Path, slug: str) -> None:
        self.home, self.slug = home, slug
        self.repository = sandbox_name(home, slug)

    def build(self, text: str, progress: Progress, *, image: str) -> str:
        with connected() as client:
            last = docker_sources.of_bottle(client, self.repository, image)
            return rebuild(client, self.home, self.slug, text, progress, last=last)

    def compare(self, text: str, image: str, seconds: float) -> list[str]:
        with connected(seconds) as client:
            return compare(client, text, docker_sources.of_bottle(client, self.repository, image))

    def verify(self, image: str, digest: str) -> None:
        with connected() as client:
            verify(client, image, digest)

    def retain(self, plan: Plan) -> str:
        with connected() as client:
            try:
                present = str(client.containers.get(self.repository).attrs["Image"])
            except NotFound:  # not started since its sandbox was removed
                present = plan.image or self.repository
            if docker_sources.find(client, present) is None:
                return ""
            return retain(client, present, self.repository)

    def prune(self, retained: set[str]) -> None:
        with connected() as client:
            prune(client, self.repository, retained)

    def clear(self) -> None:
        with connected() as client:
            clear(client, self.home, self.slug)


def _context(text: str) -> io.BytesIO:
    content, context = text.encode(), io.BytesIO()
    with tarfile.open(fileobj=context, mode="w") as archive:
        entry = tarfile.TarInfo("Dockerfile")
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))
    context.seek(0)
    return context


@contextmanager
def _gate(client: DockerClient, home: Path, slug: str) -> Iterator[Any]:
    """A container whose network the build shares. It runs our bridge with the host's Python."""
    clear(client, home, slug)
    container = client.containers.create(
        _nothing(client),
        name=_gate_name(home, slug),
        entrypoint=[host_interpreter(), "-I", "-S", INIT_INSIDE],
        command=["--no-supervise", "--"],
        user=str(engine_user(home, client.info().get("SecurityOptions") or [])),
        labels={GATE_LABEL: slug},
        mounts=[_bind(mount) for mount in _mounts(home / "bottles" / slug / "sockets")],
        stop_signal="SIGKILL",
        mem_limit=256 * 1024**2,
        pids_limit=64,
        **_confinement(),
    )
    try:
        container.start()
        _wait_for_bridge(container)
        yield container
    finally:
        with suppress(NotFound):
            container.remove(force=True, v=True)


def _nothing(client: DockerClient) -> str:
    """An empty image: everything the gate needs is mounted."""
    name = "bot-bottle-gate"
    with suppress(ImageNotFound):
        return str(client.images.get(f"{name}:nothing").id)
    with io.BytesIO() as archive:
        with tarfile.open(fileobj=archive, mode="w") as tar:
            for directory in ("run", "etc", "proc", "sys", "dev"):
                entry = tarfile.TarInfo(directory)
                entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(entry)
        client.api.import_image_from_data(archive.getvalue(), repository=name, tag="nothing")
    return str(client.images.get(f"{name}:nothing").id)


def _mounts(sockets: Path) -> list[Mount]:
    programs = [*_PROGRAMS, *([] if host_interpreter().startswith("/usr/") else [sys.base_prefix])]
    own = [Mount(str(sockets), SOCKETS_INSIDE), Mount(str(inside.DIRECTORY), PROGRAMS_INSIDE)]
    return [*(Mount(os.path.realpath(path), path) for path in programs if Path(path).exists()), *own]


def _wait_for_bridge(container: Any) -> None:
    """Wait until the bridge listens. It listens first of all, so a port in the kernel's table answers."""
    deadline = time.monotonic() + _GATE_SECONDS
    while time.monotonic() < deadline:
        container.reload()
        state = container.attrs["State"]
        if not state["Running"]:
            said = container.logs(tail=5).decode(errors="replace").strip()
            raise BackendError(f"The connection from a build to the proxy could not be opened: {said}")
        with suppress(OSError):
            # Port 9101 of 127.0.0.1 in the state LISTEN, as the kernel writes it.
            if "0100007F:238D 00000000:0000 0A" in Path(f"/proc/{state['Pid']}/net/tcp").read_text():
                return
        time.sleep(0.05)
    raise BackendError(f"The connection from a build to the proxy did not open within {_GATE_SECONDS:.0f} s.")


class _Watch:
    """Bounds the steps of a build, and ends those that take too long or write too much.

    The engine's own builder bounds neither time, disk nor processes.
    """

    def __init__(self, client: DockerClient, gate: Any, limits: BuildLimits) -> None:
        self.reason = ""
        self._client, self._gate, self._limits = client, gate, limits
        self._deadline = time.monotonic() + limits.seconds
        self._next_measure = 0.0
        self._limited: set[str] = set()
        self._written: dict[str, int] = {}
        self.done = threading.Event()

    def run(self) -> None:
        while not self.done.wait(_WATCH_SECONDS):
            with suppress(Exception):  # the engine may be busy; the next check is soon
                self.limit_processes()
            with suppress(Exception):
                if time.monotonic() > self._next_measure:
                    self.check()
                    self._next_measure = time.monotonic() + _MEASURE_SECONDS

    def limit_processes(self) -> None:
        """Limit a step's processes once its container exists: a build has no such option."""
        api = self._client.api
        for step in self._steps():
            if step["Id"] not in self._limited:
                url = api._url("/containers/{0}/update", step["Id"])  # the SDK has no name for this limit
                api._raise_for_status(api._post_json(url, data={"PidsLimit": self._limits.processes}))
                self._limited.add(step["Id"])

    def check(self) -> None:
        steps = self._steps(size=True)
        for step in steps:
            self._written[step["Id"]] = max(self._written.get(step["Id"], 0), step.get("SizeRw") or 0)
        if time.monotonic() > self._deadline:
            self.reason = f"The build was ended: it took longer than {self._limits.seconds / 60:.0f} minutes."
        elif sum(self._written.values()) > self._limits.written:
            limit = self._limits.written / 1024**3
            self.reason = f"The build was ended: it wrote more than {limit:.2g} GiB."
        if self.reason:
            for step in steps:
                with suppress(APIError):
                    self._client.api.kill(step["Id"])

    def _steps(self, **how: Any) -> list[dict[str, Any]]:
        return [each for each in self._client.api.containers(**how) if self._is_step(each)]

    def _is_step(self, container: dict[str, Any]) -> bool:
        mode = container.get("HostConfig", {}).get("NetworkMode")
        return bool(mode == f"container:{self._gate.id}")


@contextmanager
def _watched(gate: Any, limits: BuildLimits) -> Iterator[_Watch]:
    with connected() as client:  # a second client: the build's is busy
        watch = _Watch(client, gate, limits)
        thread = threading.Thread(target=watch.run, name="build-watch", daemon=True)
        thread.start()
        try:
            yield watch
        finally:
            watch.done.set()
            thread.join()
