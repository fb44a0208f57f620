"""The life of a managed server: start in phases, watch, restart with growing delays, end.

A failure is reported with its phase. Only the end of the bottle is final; other failures are retried.
"""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from botbottle.backends import secret_variables
from botbottle.backends.base import Backend, NotRunning, Unavailable
from botbottle.core.plan_types import BackendError
from botbottle.manifest.mcp_servers import Spec
from botbottle.mcp_servers import staging
from botbottle.mcp_servers.limits import ServerLimits
from botbottle.mcp_servers.process import (
    INSTALL,
    MARK,
    NOT_STARTED,
    Gone,
    StdioProcess,
    end_all,
    remove_trees,
)
from botbottle.mcp_servers.session import BadHandshake, Session

HELLO_SECONDS = 20.0
INSTALL_SECONDS = 600.0
END_SECONDS = 5.0
PING_SECONDS = 10.0
MOST_ERRORS = 3  # unanswered pings in a row
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
STEADY_SECONDS = 60.0

Result = TypeVar("Result")


class Phase(StrEnum):
    SESSION_CREATE = "session_create"
    DEP_INSTALL = "dep_install"
    PROCESS_START = "process_start"
    RELAY_CONNECT = "relay_connect"
    MCP_INIT = "mcp_init"
    RUNTIME = "runtime"
    TOOL_CALL = "tool_call"
    BOX_UNAVAILABLE = "box_unavailable"


class Condition(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    WAITING = "waiting"  # failed, and will be retried
    STOPPED = "stopped"  # by an operator, or with its bottle


class Failed(Exception):
    def __init__(self, phase: Phase, message: str) -> None:
        super().__init__(message)
        self.phase, self.message = phase, message


@dataclass(slots=True)
class State:
    """The shown state of a server. Contains names of variables, never their values."""

    condition: Condition = Condition.STOPPED
    wanted: bool = True  # False once an operator stops it
    phase: str = ""  # the phase of the last failure
    problem: str = ""
    exit_code: int | None = None  # of the last end
    stderr: str = ""
    env: list[str] = field(default_factory=list)
    restarts: int = 0
    dropped: int = 0
    started_at: float | None = None  # by the wall clock
    limits: str = ""  # the limits on all its processes together, and on each


@dataclass(frozen=True, slots=True)
class Sandbox:
    """The bottle that the servers run in."""

    backend: Backend
    slug: str
    workspace: str  # on the host
    writable: bool
    mounted: tuple[str, ...]  # every directory of the host that the agent may write to
    roots: tuple[str, ...]
    scratch: Path  # a private directory of the host

    def group_of(self, server: str) -> str:
        """The name of the server's control group, unique to this home and bottle."""
        home = hashlib.sha256(str(self.scratch).encode()).hexdigest()[:8]
        return f"bot-bottle-server-{home}-{self.slug}-{server}"


class Server:
    def __init__(self, spec: Spec, sandbox: Sandbox, changed: Callable[[], None]) -> None:
        self.spec, self.sandbox, self._changed = spec, sandbox, changed
        self.place = staging.Place(spec.name)
        self.limits = ServerLimits(sandbox.group_of(spec.name), spec.limits)
        self.state = State(env=sorted(spec.env))
        self.session: Session | None = None
        self.tried = asyncio.Event()  # set once it runs, or has failed since it was requested
        self.step = Phase.SESSION_CREATE  # the phase of the start
        self._task: asyncio.Task[None] | None = None
        self._failures = 0

    # commands

    def begin(self) -> None:
        if self._task is None or self._task.done():
            self._failures = 0
            self.tried.clear()
            self._task = asyncio.ensure_future(self._live())

    async def stop(self) -> None:
        """Stop the server, everything it started and its staged files. The bottle keeps running."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        await self._end()
        await self._remove_copy()
        self._update_state(Condition.STOPPED)
        self.tried.set()

    @property
    def is_over(self) -> bool:
        """Whether its bottle is gone."""
        return self.state.phase == Phase.BOX_UNAVAILABLE

    # life cycle

    async def _live(self) -> None:
        while True:
            running_since = None
            try:
                await self._start()
                running_since = time.monotonic()
                self._update_state(Condition.RUNNING, phase="", problem="", started_at=time.time())
                self.tried.set()
                await self._watch()
            except Failed as failure:
                if running_since is not None and time.monotonic() - running_since > STEADY_SECONDS:
                    self._failures = 0
                await self._end()
                final = failure.phase is Phase.BOX_UNAVAILABLE
                self._update_state(
                    Condition.STOPPED if final else Condition.WAITING,
                    phase=failure.phase,
                    problem=failure.message,
                )
                self.tried.set()
                if final:
                    return
            await asyncio.sleep(min(LONGEST_PAUSE, FIRST_PAUSE * 2**self._failures))
            self._failures += 1
            self.state.restarts += 1

    async def _start(self) -> None:
        self.tried.clear()
        self.step = Phase.SESSION_CREATE
        self._update_state(Condition.STARTING)
        try:
            source = await self._stage()
            process = await self._run(source)
        except (NotRunning, Unavailable) as error:
            raise Failed(Phase.BOX_UNAVAILABLE, str(error)) from error
        await self._greet(process)

    async def _stage(self) -> Path | None:
        """Raises Failed, NotRunning, Unavailable."""
        spec, box = self.spec, self.sandbox
        with _failing(Phase.SESSION_CREATE):
            await end_all(box.backend, box.slug, spec.name, seconds=0)  # left by a killed host process
        if not spec.host_path:
            return None
        source = await self._copy()
        if staging.needs_installing(source):
            await self._install()
        return source

    async def _copy(self) -> Path:
        """Raises Failed, NotRunning, Unavailable."""
        with tempfile.TemporaryDirectory(dir=self.sandbox.scratch, prefix="staging-") as scratch:
            whole = Path(scratch, self.spec.name)
            try:
                source = await _to_its_end(self._gather, whole)
            except staging.Refused as error:
                raise Failed(Phase.SESSION_CREATE, str(error)) from error
            with _failing(Phase.SESSION_CREATE):
                await self._copy_in(whole)
        return source

    def _gather(self, whole: Path) -> Path:
        """Raises Refused."""
        spec, box = self.spec, self.sandbox
        source = staging.check_root(spec.host_path, box.roots, box.mounted)
        whole.mkdir(mode=0o755)
        (whole / ".gitignore").write_text("*\n")  # nobody depends on it
        staging.copy(source, whole / "code", writable=spec.writable)
        staging.remove(box.workspace, spec.name)
        return source

    async def _copy_in(self, whole: Path) -> None:
        """Copy into the workspace, or into the home if the workspace is read-only. Raises BackendError."""
        box = self.sandbox
        for place in self._places:
            self.place = place
            try:
                await remove_trees(box.backend, box.slug, place.root)  # a copy would go into the older one
                await _to_its_end(box.backend.copy_in, box.slug, whole, place.root)
            except (NotRunning, Unavailable):
                raise
            except BackendError as error:
                refused = error
            else:
                return
        raise refused

    async def _remove_copy(self) -> None:
        """Remove the copy: inside the bottle while it runs, else in the workspace on the host."""
        box = self.sandbox
        if self.spec.host_path:
            with suppress(BackendError):
                await remove_trees(box.backend, box.slug, *(place.root for place in self._places))
        await asyncio.to_thread(staging.remove, box.workspace, self.spec.name)

    @property
    def _places(self) -> list[staging.Place]:
        return staging.places(self.spec.name, in_workspace=self.sandbox.writable)

    async def _install(self) -> None:
        box, self.step = self.sandbox, Phase.DEP_INSTALL
        process, mark = StdioProcess(lambda _: None), f"{MARK}={self.spec.name}"
        with _failing(Phase.DEP_INSTALL):
            await process.run(box.backend, box.slug, INSTALL, self.place.code, self.place.venv, mark)
        try:
            async with asyncio.timeout(INSTALL_SECONDS):
                await process.ended.wait()
        except TimeoutError:
            raise Failed(Phase.DEP_INSTALL, f"It took longer than {INSTALL_SECONDS:.0f} s.") from None
        finally:
            process.close()
        self.state.stderr = process.preview()
        if process.exit_code is None:
            raise NotRunning("The bottle ended.")
        if process.exit_code:
            raise Failed(Phase.DEP_INSTALL, "Its packages could not be installed; stderr says why.")

    async def _run(self, source: Path | None) -> StdioProcess:
        spec, box = self.spec, self.sandbox
        process = StdioProcess(lambda _: None)
        with _failing(Phase.SESSION_CREATE):
            env = {name: variable.resolve(name) for name, variable in spec.env.items()}
            secrets = {name: env[name] for name, variable in spec.env.items() if variable.secret}
            await asyncio.to_thread(secret_variables.add, box.scratch, secrets)
        self.session = Session(process)
        self.step = Phase.PROCESS_START
        with _failing(Phase.PROCESS_START):
            await process.open(box.backend, box.slug)
        self.step = Phase.RELAY_CONNECT
        try:
            async with asyncio.timeout(min(HELLO_SECONDS, spec.startup_timeout)):
                await _either(process.ready, process.ended)
        except TimeoutError:
            raise Failed(Phase.RELAY_CONNECT, "Nothing was heard on its pipes.") from None
        if not process.ready.is_set():
            raise self._ended(process, Phase.RELAY_CONNECT)
        await asyncio.to_thread(self.limits.enter, process.locate)
        self.state.limits = self.limits.words
        made = staging.launch(spec, self.place, source, env)
        with suppress(Gone):  # its end is reported below
            process.become(made, name=spec.name, limits=self.limits.of_each_process)
        return process

    async def _greet(self, process: StdioProcess) -> None:
        assert self.session is not None  # noqa: S101 - made by _run
        self.step = Phase.MCP_INIT
        try:
            async with asyncio.timeout(self.spec.startup_timeout):
                await self.session.handshake()
        except TimeoutError:
            seconds = self.spec.startup_timeout
            raise Failed(Phase.MCP_INIT, f"initialize was not answered within {seconds:g} s.") from None
        except BadHandshake as error:
            raise Failed(Phase.MCP_INIT, f"{error}.") from error
        except Gone:
            await process.ended.wait()
            not_found = process.exit_code in NOT_STARTED
            raise self._ended(process, Phase.PROCESS_START if not_found else Phase.MCP_INIT) from None

    async def _watch(self) -> None:
        """Wait until the server ends or no longer answers. Raises Failed."""
        assert self.session is not None  # noqa: S101
        process, errors = self.session.process, 0
        while errors < MOST_ERRORS:
            with suppress(TimeoutError):
                async with asyncio.timeout(PING_SECONDS):
                    await process.ended.wait()
                raise self._ended(process, Phase.RUNTIME)
            self._observe(process)
            try:
                async with asyncio.timeout(PING_SECONDS):
                    await self.session.request("ping")  # an error is an answer as well
                errors = 0
            except TimeoutError:
                errors += 1
            except Gone:
                continue
        raise Failed(Phase.RUNTIME, f"It did not answer {MOST_ERRORS} pings in a row.")

    def _observe(self, process: StdioProcess) -> None:
        seen = (process.preview(), process.dropped)
        if seen != (self.state.stderr, self.state.dropped):
            self.state.stderr, self.state.dropped = seen
            self._changed()

    def _ended(self, process: StdioProcess, phase: Phase) -> Failed:
        if process.exit_code is None:
            return Failed(Phase.BOX_UNAVAILABLE, "The bottle ended. Start it again.")
        self.state.exit_code = process.exit_code
        return Failed(phase, f"It ended with code {process.exit_code}; stderr says more.")

    async def _end(self) -> None:
        session, self.session = self.session, None
        if session is not None:
            self.state.stderr, self.state.dropped = session.process.preview(), session.process.dropped
            session.fail_all(
                error_of(Phase.TOOL_CALL, f"The server {self.spec.name} ended while it worked on this call.")
            )
            session.process.close_input()
        with suppress(BackendError):
            await end_all(self.sandbox.backend, self.sandbox.slug, self.spec.name, seconds=END_SECONDS)
        await asyncio.to_thread(self.limits.leave)
        if session is not None:
            session.process.close()

    def _update_state(self, condition: Condition, **facts: Any) -> None:
        self.state.condition = condition
        for name, value in facts.items():
            setattr(self.state, name, value)
        self._changed()


def error_of(phase: str, message: str) -> dict[str, Any]:
    """A JSON-RPC error that names the failed phase."""
    return {"code": -32603, "message": f"{phase}: {message}", "data": {"phase": str(phase)}}


class _failing:  # noqa: N801 - reads as what it does
    """Turn a backend's error into a failure of this phase; the bottle's end passes unchanged."""

    def __init__(self, phase: Phase) -> None:
        self.phase = phase

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, BackendError) and not isinstance(error, (NotRunning, Unavailable)):
            raise Failed(self.phase, str(error)) from error


async def _to_its_end(work: Callable[..., Result], *arguments: object) -> Result:
    """Run it on a thread, and wait for it even if cancelled: it must not continue unnoticed."""
    thread = asyncio.ensure_future(asyncio.to_thread(work, *arguments))
    try:
        return await asyncio.shield(thread)
    except asyncio.CancelledError:
        await asyncio.gather(thread, return_exceptions=True)
        raise


async def _either(*events: asyncio.Event) -> None:
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
