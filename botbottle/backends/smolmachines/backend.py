"""Bottles as virtual machines, by the `smolvm` command line.

Trust boundary: the machine has no network, which is checked and not assumed; it has only the two sockets. Its
image is a directory or an archive of this host: nothing is fetched.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from typing import Any

from botbottle import inside
from botbottle.backends import secret_variables
from botbottle.backends.accounts import (
    HOME_LABEL,
    SLUG_LABEL,
    User,
    bottle_user,
    home_mark,
    sandbox_labels,
    sandbox_name,
    warn_of_closed_mounts,
)
from botbottle.backends.archive import RECEIVE, pack
from botbottle.backends.base import STOP_SECONDS, Life, NotRunning, Pipes, Progress, Unavailable
from botbottle.backends.smolmachines.machine import (
    BUILDS_NOTHING,
    FILES,
    LOG,
    PID,
    PYTHON,
    VARIABLES,
    create_arguments,
    init_command,
    is_in_home,
    setup_argument,
    with_variables,
)
from botbottle.backends.smolmachines.smolvm import Refused, Smolvm, check_virtualization, find_program
from botbottle.core import locks
from botbottle.core.plan_types import (
    INIT_INSIDE,
    PROGRAMS_INSIDE,
    WORKSPACE_INSIDE,
    BackendError,
    Plan,
)
from botbottle.provision.agents import SERVER
from botbottle.provision.variables import MCP_URL

_SCRIPTS = ("init.py", "bridge.py", "install_files.py", "run_logged.py", "terminate.py")
_COPIED, _LOCK = "copied-", "smolmachines.lock"
_START_SECONDS = 180.0
_COPY_LOCK_SECONDS = 2.0  # a tidying process holds the lock for a moment
_SAVED_LOG_BYTES = 10_000_000
_READ_LIMIT = 1 << 20


class SmolmachinesBackend:
    name = "smolmachines"

    def __init__(self, home: Path) -> None:
        self.home = home.resolve()
        self._smolvm = Smolvm(self.home / "smolmachines")

    def available(self) -> None:
        find_program()
        check_virtualization()

    def read(self, image: str, path: str) -> str | None:
        """Read from a directory only: archives are not opened."""
        root = Path(image).resolve()
        found = (root / path.lstrip("/")).resolve()
        if not image or not found.is_relative_to(root) or not found.is_file():
            return None
        try:
            return found.read_text(encoding="utf-8") if found.stat().st_size <= _READ_LIMIT else None
        except UnicodeDecodeError:
            return None

    def build(self, plan: Plan, progress: Progress) -> str:
        if plan.dockerfile:
            raise BackendError(BUILDS_NOTHING)
        return plan.image

    def interpreter(self, _plan: Plan) -> str:
        return "python3"

    def start(self, plan: Plan, progress: Progress) -> None:
        self._boot(plan, progress)
        launch = [*PYTHON, f"{PROGRAMS_INSIDE}/run_logged.py", LOG, PID, *init_command(plan)]
        try:
            self._smolvm.call("exec", *self._agent(plan.slug), "-d", "-w", plan.workdir, "--", *launch)
        except BackendError:
            self._delete(plan.slug)
            raise
        progress(f"Started machine {sandbox_name(self.home, plan.slug)}")

    def run(self, plan: Plan, progress: Progress) -> int:
        self._boot(plan, progress)
        options = ["-i", *(["-t"] if os.isatty(0) and os.isatty(1) else []), "-w", plan.workdir]
        try:
            return self._smolvm.foreground(
                "exec", *self._agent(plan.slug), *options, "--", *PYTHON, *init_command(plan)
            )
        finally:
            self.stop(plan.slug)

    def exec(self, slug: str, command: Sequence[str], *, tty: bool) -> int:
        self._require_running(slug)
        options = ["-i", *(["-t"] if tty else []), "-w", WORKSPACE_INSIDE]
        return self._smolvm.foreground("exec", *self._agent(slug), *options, "--", *with_variables(command))

    def pipe(self, slug: str, program: str, *arguments: str) -> Pipes:
        self._require_running(slug)
        command = with_variables([*PYTHON, "-c", program, *arguments])
        return self._smolvm.pipes("exec", *self._agent(slug), "-i", "--", *command)

    def attach(self, slug: str) -> int:
        self._require_running(slug)
        raise BackendError(
            "smolvm cannot join the main command of a machine. See what it prints (bottle logs --follow "
            f"{slug}), or open a shell beside it (bottle exec {slug} -- sh)."
        )

    def logs(self, slug: str, *, follow: bool) -> Iterator[bytes]:
        """Read a running machine's log from inside; of a stopped one, the saved copy."""
        if not self.life(slug).alive:
            saved = self._saved_log(slug)
            yield saved.read_bytes() if saved.exists() else b""
            return
        tail = ["tail", "-c", str(_SAVED_LOG_BYTES), *(["-f"] if follow else []), LOG]
        with self._smolvm.output("exec", *self._agent(slug), "--stream", "--", *tail) as output:
            while data := os.read(output.fileno(), 65536):
                yield data

    def copy_in(self, slug: str, source: Path, target: str) -> None:
        if not target.startswith("/"):
            raise BackendError(f"{target!r} must be absolute in the bottle, such as {WORKSPACE_INSIDE}/x.")
        self._require_running(slug)
        with tempfile.TemporaryFile() as archive:
            name = pack(source, archive)
            receive = [*PYTHON, "-c", RECEIVE, target, name]
            try:
                self._smolvm.call("exec", *self._agent(slug), "-i", "--", *receive, stdin=archive)
            except Refused as error:
                raise BackendError(f"{source} could not be copied to {target}: {error}") from error

    def stop(self, slug: str, *, seconds: float = STOP_SECONDS) -> None:
        if not self.life(slug).alive:
            self._forget_secrets(slug)
            return
        terminate = [*PYTHON, f"{PROGRAMS_INSIDE}/terminate.py", PID, str(seconds)]
        self._try_inside(slug, *terminate, seconds=seconds + 10)
        log = self._try_inside(slug, "tail", "-c", str(_SAVED_LOG_BYTES), LOG)
        self._saved_log(slug).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._saved_log(slug).write_bytes(log[-_SAVED_LOG_BYTES:])
        self._smolvm.call("stop", "--name", sandbox_name(self.home, slug), "-t", "1", seconds=seconds + 60)
        self._forget_secrets(slug)

    def life(self, slug: str) -> Life:
        status = self._status(slug)
        if status is None or (status["state"] != "running" and not status.get("pid")):
            return Life(alive=False)
        return Life(alive=True, started_at=status.get("created_at"), pid=status.get("pid"))

    def orphans(self, known: Iterable[str]) -> list[str]:
        labels = [machine.get("labels") or {} for machine in self._smolvm.call_json("ls")]
        own = {each[SLUG_LABEL] for each in labels if each.get(HOME_LABEL) == home_mark(self.home)}
        return sorted(own - set(known))

    def tidy(self, slug: str) -> None:
        """Remove files that a killed start had yet to copy, secrets among them. A start locks its own."""
        for path in self._saved_log(slug).parent.glob(f"{_COPIED}*"):
            with suppress(OSError), locks.lock_shared(path):
                path.unlink()
        self._forget_secrets(slug)

    def remove(self, slug: str) -> None:
        self.stop(slug)
        self._delete(slug)
        self._forget_secrets(slug)
        shutil.rmtree(self._saved_log(slug).parent, ignore_errors=True)

    def rebuild(self, slug: str, dockerfile: str, progress: Progress) -> str:
        raise Unavailable(BUILDS_NOTHING)

    # Beneath the interface

    def _run(self, slug: str) -> Path:
        return self.home / "bottles" / slug / "run"

    def _saved_log(self, slug: str) -> Path:
        return self._run(slug) / "smolmachines" / "log"

    def _forget_secrets(self, slug: str) -> None:
        secret_variables.forget_when_over(self._run(slug), slug, self.life, lock=_LOCK)

    def _agent(self, slug: str) -> list[str]:
        return ["--name", sandbox_name(self.home, slug), "-u", str(bottle_user(self.home))]

    def _root(self, slug: str) -> list[str]:
        return ["--name", sandbox_name(self.home, slug), "-u", "0:0"]

    def _try_inside(self, slug: str, *command: str, seconds: float = 30.0) -> bytes:
        try:
            return self._smolvm.call("exec", *self._agent(slug), "--", *command, seconds=seconds)
        except BackendError:  # a machine that does not answer is stopped all the same
            return b""

    def _status(self, slug: str) -> dict[str, Any] | None:
        try:
            status: dict[str, Any] = self._smolvm.call_json("status", "--name", sandbox_name(self.home, slug))
        except Refused as error:
            if error.is_missing:
                return None
            raise
        return status

    def _require_running(self, slug: str) -> None:
        if not self.life(slug).alive:
            raise NotRunning(f"The bottle {slug} is not running. Start it with: bottle start {slug}")

    def _delete(self, slug: str) -> None:
        try:
            self._smolvm.call("delete", "--name", sandbox_name(self.home, slug), "-f")
        except Refused as error:
            if not error.is_missing:
                raise

    def _boot(self, plan: Plan, progress: Progress) -> None:
        with secret_variables.lock_start(self._run(plan.slug), plan.slug, lock=_LOCK):
            self._boot_alone(plan, progress)

    def _boot_alone(self, plan: Plan, progress: Progress) -> None:
        """Boot a machine with everything but the main command. A failure leaves nothing behind."""
        if self.life(plan.slug).alive:
            raise BackendError(f"The bottle {plan.slug} runs already. Stop it with: bottle stop {plan.slug}")
        create = create_arguments(plan, sandbox_labels(self.home, plan.slug))
        user = bottle_user(self.home)
        warn_of_closed_mounts(plan.mounts, user, progress)
        if plan.limits.pids is not None:
            progress("Warning: smolvm has no limit of processes; limits.pids does nothing here.")
        if plan.limits.files is not None:
            progress("Warning: smolvm has no limit of descriptors; limits.files does nothing here.")
        variables = secret_variables.environment(plan, self._run(plan.slug))
        self._delete(plan.slug)
        name = sandbox_name(self.home, plan.slug)
        try:
            self._smolvm.call("create", "--name", name, "-u", str(user), *create)
            self._require_no_network(plan.slug)
            progress(f"Booting machine {name}")
            self._smolvm.call("start", "--name", name, seconds=_START_SECONDS)
            self._require_no_network(plan.slug)
            self._provide(plan, user, variables)
            self._place_and_register(plan, progress)
        except BaseException:
            self._delete(plan.slug)
            secret_variables.forget(self._run(plan.slug))
            raise

    def _require_no_network(self, slug: str) -> None:
        """Raises BackendError unless smolvm reports no network: old versions dropped policies silently."""
        status = self._status(slug) or {}
        if status.get("network") is not False or status.get("ports") != 0:
            raise BackendError(
                "smolvm reports a network or ports for a machine that must have none, so it was deleted. "
                "Look for defaults in a Smolfile or in smolvm's configuration, and take them out."
            )

    def _provide(self, plan: Plan, user: User, variables: dict[str, str]) -> None:
        """Make directories and accounts, then copy in our programs, the plan's files and the variables."""
        prepare = (inside.DIRECTORY / "vm_setup.py").read_text(encoding="utf-8")
        wanted = json.dumps(setup_argument(plan, user))
        try:
            self._smolvm.call("exec", *self._root(plan.slug), "--", *PYTHON, "-c", prepare, wanted)
        except Refused as error:
            raise BackendError(
                f"The machine of {plan.slug} could not be prepared. It needs python3 in its image: {error}"
            ) from error
        for name in _SCRIPTS:
            text = (inside.DIRECTORY / name).read_text(encoding="utf-8")
            self._copy(plan.slug, text, f"{PROGRAMS_INSIDE}/{name}", 0o644)
        index = []
        for number, file in enumerate(plan.files):
            if is_in_home(file):
                index.append({"name": str(number), "path": file.path, "mode": file.mode})
                self._copy(plan.slug, file.content, f"{FILES}/{number}", 0o400, user)
            else:
                self._copy(plan.slug, file.content, file.path, file.mode)
        self._copy(plan.slug, json.dumps(index), f"{FILES}/index.json", 0o444)
        self._copy(plan.slug, json.dumps(variables), VARIABLES, 0o400, user)

    def _copy(self, slug: str, content: str, target: str, mode: int, owner: User | None = None) -> None:
        """Copy through a private file of the host, which is removed afterwards."""
        owned = ["--uid", str(owner.uid), "--gid", str(owner.gid)] if owner else []
        path = self._saved_log(slug).parent / f"{_COPIED}{token_hex(8)}"
        descriptor = locks.acquire(path, seconds=_COPY_LOCK_SECONDS)  # before it has a content: see `tidy`
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(content)
                file.flush()
                place = f"{sandbox_name(self.home, slug)}:{target}"
                self._smolvm.call("cp", "--mode", f"{mode:o}", *owned, str(path), place)
        finally:
            path.unlink(missing_ok=True)

    def _place_and_register(self, plan: Plan, progress: Progress) -> None:
        """Install files in the home; then register our server with Claude Code's own command, as its user."""
        register = ["claude", "mcp", "add", "--scope", "user", "--transport", "http", SERVER, MCP_URL]
        place = [
            *PYTHON,
            f"{PROGRAMS_INSIDE}/install_files.py",
            FILES,
            INIT_INSIDE,
            "exec",
            "--env-file",
            VARIABLES,
            "--",
        ]
        self._smolvm.call("exec", *self._agent(plan.slug), "--", *place, "true")
        if plan.agent != "claude" or not plan.supervise:
            return
        try:
            self._smolvm.call("exec", *self._agent(plan.slug), "--", *with_variables(register))
        except BackendError as error:
            if "already exists" not in str(error):
                progress(
                    f"Warning: the supervise tools could not be registered ({error}). Do it by hand: "
                    f"bottle exec {plan.slug} -- {shlex.join(register)}"
                )
