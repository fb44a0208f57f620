"""Bottles as containers of a Docker engine on this host, or of podman behind the same interface.

Trust boundary: the container has no network and no privilege; its ways out are the two mounted sockets.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from docker import DockerClient  # type: ignore[import-untyped]
from docker.errors import APIError, NotFound  # type: ignore[import-untyped]

from botbottle.backends import secret_variables
from botbottle.backends.accounts import (
    HOME_LABEL,
    SLUG_LABEL,
    chown_workspace,
    home_mark,
    sandbox_labels,
    sandbox_name,
    warn_of_closed_mounts,
)
from botbottle.backends.archive import RECEIVE, pack
from botbottle.backends.base import STOP_SECONDS, Life, NotRunning, Pipes, Progress, Unavailable, one_line
from botbottle.backends.docker import build as docker_build
from botbottle.backends.docker import images as docker_images
from botbottle.backends.docker import pipes, terminal
from botbottle.backends.docker.container import (
    PYTHON,
    VARIABLES_INSIDE,
    Staged,
    engine_user,
    environment,
    settings,
)
from botbottle.backends.docker.engine import SECONDS, connected, moment, socket_path
from botbottle.core.plan_types import INIT_INSIDE, WORKSPACE_INSIDE, BackendError, Plan

READER_LABEL = "bot-bottle.reader"  # a container for reading files of an image; it never runs
_DETACH_KEYS = "ctrl-p,ctrl-q"
_LOCK = "docker.lock"
_FIRST_PROGRAM_SECONDS = 30.0
_READER_SECONDS = 300.0
_NOT_RUN = (126, 127)  # init.py's exit codes for a command that could not be executed


class DockerBackend:
    name = "docker"

    def __init__(self, home: Path) -> None:
        self.home = home.resolve()

    def available(self) -> None:
        with connected() as client:
            if any("name=userns" in option for option in client.info().get("SecurityOptions") or []):
                raise Unavailable(
                    "This Docker engine renumbers users (userns-remap): a bottle could not read its own "
                    "files. Use an engine without it, a rootless one, or the local backend."
                )

    def read(self, image: str, path: str) -> str | None:
        with connected() as client:
            return docker_images.read_text(client, image, path, self._reader_labels())

    def build(self, plan: Plan, progress: Progress) -> str:
        with connected() as client:
            return self._image(client, plan, progress)

    def interpreter(self, _plan: Plan) -> str:
        return "python3"

    def start(self, plan: Plan, progress: Progress) -> None:
        with connected() as client, self._starting(plan.slug):
            container = self._create(client, plan, progress, tty=True)
            self._begin(container, plan)
            progress(f"Started container {container.name}")

    def run(self, plan: Plan, progress: Progress) -> int:
        tty = terminal.is_terminal()
        with connected() as client:
            with self._starting(plan.slug):
                container = self._create(client, plan, progress, tty=tty)
                stream = self._attach(client, container)
                self._begin(container, plan, wait=False)
            try:
                return self._follow(container, stream)
            finally:
                self._forget_secrets(plan.slug)

    def exec(self, slug: str, command: Sequence[str], *, tty: bool) -> int:
        with connected() as client:
            container = self._running(client, slug)
            argv = [*PYTHON, INIT_INSIDE, "exec", "--env-file", VARIABLES_INSIDE, "--", *command]
            return self._exec(client, container, argv, tty=tty)

    def pipe(self, slug: str, program: str, *arguments: str) -> Pipes:
        with connected() as client:
            container = self._running(client, slug)
            argv = [*PYTHON, INIT_INSIDE, "exec", "--env-file", VARIABLES_INSIDE, "--"]
            argv += [*PYTHON, "-c", program, *arguments]
            created = client.api.exec_create(container.id, argv, stdin=True, tty=False)["Id"]
            path = f"/v{client.api.api_version}/exec/{created}/start"
            body: dict[str, object] = {"Detach": False, "Tty": False}
            stream = terminal.upgrade(socket_path(), path, body, framed=True)
            return pipes.join(stream, created, container.id)

    def attach(self, slug: str) -> int:
        with connected() as client:
            container = self._running(client, slug)
            return self._follow(container, self._attach(client, container))

    def logs(self, slug: str, *, follow: bool) -> Iterator[bytes]:
        with connected() as client:
            container = self._find(client, slug)
            if container is None:
                return
            path = f"/v{client.api.api_version}/containers/{container.id}/logs"
            path += f"?stdout=1&stderr=1&follow={follow:d}"
            yield from terminal.download(socket_path(), path, framed=not container.attrs["Config"]["Tty"])

    def copy_in(self, slug: str, source: Path, target: str) -> None:
        if not target.startswith("/"):
            raise BackendError(
                f"{target!r} must be an absolute path in the bottle, such as {WORKSPACE_INSIDE}/x."
            )
        with connected() as client, tempfile.TemporaryFile() as archive, tempfile.TemporaryFile() as said:
            container = self._running(client, slug)
            name = pack(source, archive)
            argv = [*PYTHON, "-c", RECEIVE, target, name]
            sources = (archive.fileno(), said.fileno(), said.fileno())
            if self._exec(client, container, argv, tty=False, files=sources) != 0:
                said.seek(0)
                reason = one_line(said.read(2000))
                raise BackendError(f"{source} could not be copied to {target}: {reason}")

    def stop(self, slug: str, *, seconds: float = STOP_SECONDS) -> None:
        with connected() as client:
            container = self._find(client, slug)
            if container is not None:
                with suppress(NotFound):
                    container.stop(timeout=round(seconds))
            self._staged(slug).forget_variables()
        self._forget_secrets(slug)

    def life(self, slug: str) -> Life:
        with connected() as client:
            container = self._find(client, slug)
            if container is None:
                return Life(alive=False)
            state = container.attrs["State"]
            if state["Running"]:
                return Life(alive=True, started_at=moment(state["StartedAt"]), pid=state["Pid"] or None)
            ran = moment(state["StartedAt"])
            return Life(alive=False, started_at=ran, exit_code=state["ExitCode"] if ran else None)

    def orphans(self, known: Iterable[str]) -> list[str]:
        with connected() as client:
            self._remove_forgotten_readers(client)
            filters = {"label": [f"{HOME_LABEL}={home_mark(self.home)}", SLUG_LABEL]}
            found = [*client.containers.list(all=True, filters=filters), *client.images.list(filters=filters)]
            return sorted({entry.labels[SLUG_LABEL] for entry in found} - set(known))

    def tidy(self, slug: str) -> None:
        """Remove the variables that a killed start left, secrets among them. Does not need the engine."""
        if self._staged(slug).variables.exists():
            with suppress(BackendError), self._starting(slug):  # a start in progress removes them itself
                pass
        self._forget_secrets(slug)

    def remove(self, slug: str) -> None:
        with connected() as client:
            container = self._find(client, slug)
            if container is not None:
                _remove(container)
            labels = [f"{name}={value}" for name, value in sandbox_labels(self.home, slug).items()]
            for image in client.images.list(filters={"label": labels}):
                with suppress(APIError):  # another bottle runs it, and removes it later
                    client.images.remove(image.id, force=True)
            self._staged(slug).remove()
        self._forget_secrets(slug)

    def rebuild(self, slug: str, dockerfile: str, progress: Progress) -> str:
        with connected() as client:
            return docker_build.rebuild(client, self.home, slug, dockerfile, progress)

    # Beneath the interface

    def _reader_labels(self) -> dict[str, str]:
        return {HOME_LABEL: home_mark(self.home), READER_LABEL: "1"}

    def _run(self, slug: str) -> Path:
        return self.home / "bottles" / slug / "run"

    def _staged(self, slug: str) -> Staged:
        return Staged(self._run(slug) / "docker")

    def _forget_secrets(self, slug: str) -> None:
        secret_variables.forget_when_over(self._run(slug), slug, self.life, lock=_LOCK)

    def _find(self, client: DockerClient, slug: str) -> Any:
        filters = {"label": [f"{name}={value}" for name, value in sandbox_labels(self.home, slug).items()]}
        found = client.containers.list(all=True, filters=filters, ignore_removed=True)
        # Containers inherit an image's labels: readers and build steps can carry ours without being a bottle.
        name = sandbox_name(self.home, slug)
        return next((container for container in found if container.name == name), None)

    def _running(self, client: DockerClient, slug: str) -> Any:
        container = self._find(client, slug)
        if container is None or not container.attrs["State"]["Running"]:
            raise NotRunning(f"The bottle {slug} is not running. Start it with: bottle start {slug}")
        return container

    @contextmanager
    def _starting(self, slug: str) -> Iterator[None]:
        """Allow one start at a time: two would overwrite each other's staged files."""
        with secret_variables.lock_start(self._run(slug), slug, lock=_LOCK):
            try:
                yield
            finally:
                self._staged(slug).forget_variables()

    def _image(self, client: DockerClient, plan: Plan, progress: Progress) -> str:
        labels, name = sandbox_labels(self.home, plan.slug), sandbox_name(self.home, plan.slug)
        return docker_images.ready_image(client, plan, labels, name, progress)

    def _create(self, client: DockerClient, plan: Plan, progress: Progress, *, tty: bool) -> Any:
        previous = self._find(client, plan.slug)
        if previous is not None and previous.attrs["State"]["Running"]:
            raise BackendError(f"The bottle {plan.slug} runs already. Stop it with: bottle stop {plan.slug}")
        labels, name = sandbox_labels(self.home, plan.slug), sandbox_name(self.home, plan.slug)
        image = self._image(client, plan, progress)
        user = engine_user(self.home, client.info().get("SecurityOptions") or [])
        chown_workspace(plan, user)
        warn_of_closed_mounts(plan.mounts, user, progress)
        staged = self._staged(plan.slug)
        of_image = client.images.get(image).attrs["Config"].get("Env") or []
        variables = environment(secret_variables.environment(plan, self._run(plan.slug)), of_image)
        image_accounts = {
            name: docker_images.read_text(client, image, f"/etc/{name}", self._reader_labels())
            for name in ("passwd", "group")
        }
        staged.write(plan, user, variables, image_accounts)
        if previous is not None:
            _remove(previous)
        return client.containers.create(image, name=name, **settings(plan, user, staged, labels, tty=tty))

    def _begin(self, container: Any, plan: Plan, *, wait: bool = True) -> None:
        """Start the container and check that its first program runs. On failure, remove the container."""
        try:
            container.start()
            if wait:
                _wait_for_first_program(container, plan)
        except APIError as error:
            _remove(container)
            raise BackendError(_why_not_started(str(error.explanation or error), plan)) from error
        except BackendError:
            _remove(container)
            raise

    def _attach(self, client: DockerClient, container: Any) -> terminal.Stream:
        query = f"stream=1&stdin=1&stdout=1&stderr=1&detachKeys={_DETACH_KEYS}"
        path = f"/v{client.api.api_version}/containers/{container.id}/attach?{query}"
        return terminal.upgrade(socket_path(), path, None, framed=not container.attrs["Config"]["Tty"])

    def _follow(self, container: Any, stream: terminal.Stream) -> int:
        """Join this terminal to the main command. Returns its exit code, or 0 after a detach."""
        if not stream.framed and terminal.is_terminal():
            with terminal.raw_terminal(lambda rows, columns: _resize(container, rows, columns)):
                terminal.relay(stream, source=0, out=1, err=2)
        else:
            with terminal.signals_passed_on(lambda name: _kill(container, name)):
                terminal.relay(stream, source=0, out=1, err=2)
        container.reload()
        if not stream.framed and container.attrs["State"]["Running"]:
            return 0
        return int(container.wait(timeout=None)["StatusCode"])

    def _exec(
        self,
        client: DockerClient,
        container: Any,
        argv: list[str],
        *,
        tty: bool,
        files: tuple[int, int, int] = (0, 1, 2),
    ) -> int:
        api = client.api
        created = api.exec_create(container.id, argv, stdin=True, tty=tty)["Id"]
        path = f"/v{api.api_version}/exec/{created}/start"
        stream = terminal.upgrade(socket_path(), path, {"Detach": False, "Tty": tty}, framed=not tty)
        source, out, err = files
        if tty and terminal.is_terminal():
            with terminal.raw_terminal(lambda rows, columns: api.exec_resize(created, rows, columns)):
                terminal.relay(stream, source=source, out=out, err=err)
        else:
            terminal.relay(stream, source=source, out=out, err=err)
        return _exit_code(api, created)

    def _remove_forgotten_readers(self, client: DockerClient) -> None:
        labels = [f"{name}={value}" for name, value in self._reader_labels().items()]
        for reader in client.containers.list(all=True, filters={"label": labels}, ignore_removed=True):
            if time.time() - (moment(reader.attrs["Created"]) or 0) > _READER_SECONDS:
                _remove(reader)


def _remove(container: Any) -> None:
    with suppress(NotFound):
        container.remove(force=True, v=True)


def _kill(container: Any, name: str) -> None:
    with suppress(APIError):  # it ended by itself
        container.kill(name)


def _resize(container: Any, rows: int, columns: int) -> None:
    with suppress(APIError):
        container.resize(rows, columns)


def _exit_code(api: Any, execution: str) -> int:
    """The exit code. The stream can end a moment before the engine knows it."""
    deadline = time.monotonic() + SECONDS
    while True:
        state = api.exec_inspect(execution)
        if state["ExitCode"] is not None and not state["Running"]:
            return int(state["ExitCode"])
        if time.monotonic() > deadline:
            raise BackendError(
                "The command left its terminal and runs on. Look for it with: bottle exec … -- ps"
            )
        time.sleep(0.02)


def _wait_for_first_program(container: Any, plan: Plan) -> None:
    deadline = time.monotonic() + _FIRST_PROGRAM_SECONDS
    while time.monotonic() < deadline:
        container.reload()
        state = container.attrs["State"]
        if not state["Running"]:
            if plan.command and state["ExitCode"] not in _NOT_RUN:
                return
            said = one_line(container.logs(tail=20)[-2000:])
            raise BackendError(f"The bottle {plan.slug} ended at once, with code {state['ExitCode']}: {said}")
        if not plan.command or _runs_something(container):
            return
        time.sleep(0.02)
    raise BackendError(
        f"The bottle {plan.slug} started nothing within {_FIRST_PROGRAM_SECONDS:.0f} s. Try again."
    )


def _runs_something(container: Any) -> bool:
    """Whether the command runs: a child that is not the command yet has init.py's arguments."""
    try:
        commands = {row[-1] for row in container.top()["Processes"] or []}
    except APIError:  # it can end between two requests
        return False
    return sum(not _is_ending(command) for command in commands) > 1


def _is_ending(command: str) -> bool:
    """Whether a process is exiting: it has no arguments, and its name is in brackets or 'defunct'."""
    return command.endswith("<defunct>") or (command.startswith("[") and command.endswith("]"))


def _why_not_started(said: str, plan: Plan) -> str:
    if "python3" in said and ("not found" in said or "no such file" in said.lower()):
        return (
            f"The image of {plan.slug} has no python3, which runs the bridge to the proxy. "
            "Add to its Dockerfile: RUN apt-get install -y --no-install-recommends python3 "
            "(on Alpine: RUN apk add --no-cache python3)."
        )
    return f"The Docker engine could not start {plan.slug}: {said}"
