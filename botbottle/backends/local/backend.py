"""Bottles by bubblewrap on this host. A bottle lives while its supervisor holds the lock on `run/lock`.

Trust boundary: everything that comes out of a bottle is untrusted; nothing of the operator's goes in but what
the plan names.
"""

from __future__ import annotations

import _socket as socket
import json
import os
import select
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from botbottle.backends import quotas, secret_variables
from botbottle.backends.base import STOP_SECONDS, Life, NotRunning, Pipes, Progress, Unavailable, one_line
from botbottle.backends.local import bubblewrap, run_dir, supervisor, supervisor_io, terminal
from botbottle.core.interpreter import compiled, host_interpreter
from botbottle.core.plan_types import BackendError, Plan

if TYPE_CHECKING:
    from botbottle.backends.local.cgroups import Placement  # a start without limits does not import it

HINT = "Install it: `apt-get install bubblewrap` (0.8 or newer), or your distribution's package of that name."
START_SECONDS = 30.0
GRACE_SECONDS = 5.0  # for a supervisor to put everything away
NOT_STARTED = (126, 127)  # the command could not be executed; init.py has printed why


class LocalBackend:
    name = "local"

    def __init__(self, home: Path) -> None:
        self.home = home

    @property
    def tag(self) -> str:
        """The prefix of the names of this home's control groups."""
        from hashlib import sha256  # noqa: PLC0415 - a start without limits does without

        return f"bot-bottle-{sha256(os.path.realpath(self.home).encode()).hexdigest()[:8]}-"

    # state

    def available(self) -> None:
        import subprocess  # noqa: PLC0415 - starting a bottle does without

        program = find_bubblewrap()
        box = bubblewrap.Box()
        try:
            bubblewrap.fill(box, Plan("probe", self.name, "/", workdir="/"))
            words = [program, *box.arguments, "/usr/bin/true"]
            probe = subprocess.run(words, pass_fds=box.fds, capture_output=True, timeout=30, check=False)  # noqa: S603
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Unavailable(f"Bubblewrap does not run here: {error}. {HINT}") from error
        finally:
            box.close()
        if probe.returncode:
            said = probe.stderr.decode("utf-8", "replace").strip()[-300:]
            raise Unavailable(
                f"Bubblewrap cannot make a sandbox here: {said}. It needs version 0.8 and user namespaces "
                "(sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone, or AppArmor's "
                "kernel.apparmor_restrict_unprivileged_userns)."
            )

    def read(self, image: str, path: str) -> str | None:
        """Read without following links, which may lead out. A bottle of this host has an empty home."""
        if not image:
            return None
        directory = os.open(image, os.O_PATH | os.O_DIRECTORY)
        try:
            *parents, name = path.strip("/").split("/")
            for parent in parents:
                below = os.open(parent, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
                os.close(directory)
                directory = below
            descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)
            with os.fdopen(descriptor, encoding="utf-8") as file:
                return file.read()
        except (OSError, UnicodeDecodeError):
            return None
        finally:
            os.close(directory)

    def build(self, plan: Plan, progress: Progress) -> str:
        return plan.image

    def interpreter(self, plan: Plan) -> str:
        return bubblewrap.interpreter_inside(plan)

    def life(self, slug: str) -> Life:
        run = self._run(slug)
        state = run_dir.state(run)
        if not run_dir.alive(run):
            return Life(False, state.get("started_at"), state.get("exit_code"))
        return Life(True, state.get("started_at"), None, state.get("pid"))

    def orphans(self, known: Iterable[str]) -> list[str]:
        from botbottle.backends.local import cgroups  # noqa: PLC0415 - as above

        wanted = set(known)
        left = {Path(group).name.removeprefix(self.tag) for group in cgroups.leftovers(self.tag)}
        for run in self.home.glob("bottles/*/run"):
            if run_dir.alive(run) or (run / "cgroups").exists():
                left.add(run.parent.name)
        return sorted(left - wanted)

    def logs(self, slug: str, *, follow: bool) -> Iterator[bytes]:
        return run_dir.logs(self._run(slug), follow=follow)

    # starting

    def run(self, plan: Plan, progress: Progress) -> int:
        front = terminal.both()
        options = self._options(plan, progress, terminal.variables() if front else {})
        options.front, options.terminal, options.size = True, front, terminal.size()
        started = supervisor.SandboxSupervisor(options)
        if front:
            with terminal.raw():
                code = started.run()
        else:
            code = started.run()
        (self._run(plan.slug) / "cgroups").unlink(missing_ok=True)
        run_dir.tidy(self._run(plan.slug))
        if not started.started and code not in NOT_STARTED:
            self.available()
            raise BackendError(
                f"{plan.slug} could not be started ({code}): {run_dir.tail(self._run(plan.slug))}"
            )
        return code

    def start(self, plan: Plan, progress: Progress) -> None:
        import subprocess  # noqa: PLC0415 - `run` does without

        options = self._options(plan, progress, {})
        ready, options.ready = os.pipe()
        inherited = [options.lock, options.control, options.ready, *options.fds]
        source = Path(supervisor.__file__)
        program = [host_interpreter(), "-I", "-S", str(compiled(source)), str(source.parent), plan.slug]
        program += options.arguments()
        try:
            subprocess.run(  # noqa: S603
                program, pass_fds=inherited, check=True, stdin=subprocess.DEVNULL, cwd="/", env={},
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
        except (OSError, subprocess.CalledProcessError) as error:
            raise BackendError(f"{plan.slug}: its supervisor cannot be started: {error}.") from error
        finally:
            for fd in inherited:
                os.close(fd)
        said = os.read(ready, 64) if select.select([ready], [], [], START_SECONDS)[0] else b"nothing in time"
        os.close(ready)
        if said != b"started":
            self._failed(plan, said)

    def _failed(self, plan: Plan, said: bytes) -> None:
        if not said.startswith(b"ended "):
            self.stop(plan.slug, seconds=0)
            raise BackendError(f"{plan.slug} did not start: its supervisor said {said.decode()!r}.")
        code = int(said.split()[1])
        if code not in NOT_STARTED:
            self.available()
        raise BackendError(f"{plan.slug} ended at once ({code}): {run_dir.tail(self._run(plan.slug))}")

    def _options(self, plan: Plan, progress: Progress, extra: dict[str, str]) -> supervisor.StartOptions:
        """Prepare everything for a start. All that can fail fails here, before anything runs."""
        program = find_bubblewrap()
        run = self._run(plan.slug)
        run.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = run_dir.acquire(run, plan.slug)
        box = bubblewrap.Box()
        try:
            run_dir.sweep(run)
            for name in ("log", "log.1"):
                (run / name).unlink(missing_ok=True)
            variables = box.data(bubblewrap.environment(secret_variables.environment(plan, run) | extra))
            bubblewrap.fill(box, plan)
            first = bubblewrap.first_program(plan)
            placement = self._place(plan, run, progress)
        except BaseException:
            box.close()
            secret_variables.forget(run)
            os.close(lock)
            raise
        own_end, other_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        control = other_end.detach()
        box.fds.append(control)
        flags = ["--env-fd", variables, "--control-fd", str(control)]
        flags += [] if plan.supervise else ["--no-supervise"]
        if (most := self._processes_inside(plan, placement)) is not None:
            flags += ["--pids", str(most)]
        arguments = box.data(b"".join(os.fsencode(f"{word}\0") for word in box.arguments))
        inside = [*first, *flags, "--", *plan.command]
        options = supervisor.StartOptions(str(run), lock, [program, "--args", arguments, *inside], box.fds)
        options.control = own_end.detach()
        options.rlimits = quotas.rlimits(plan.limits)
        if placement is not None:
            options.cgroups, options.rlimits = (
                list(placement.cgroups),
                options.rlimits + list(placement.rlimits),
            )
            options.processors = list(placement.processors)
        return options

    def _processes_inside(self, plan: Plan, placement: Placement | None) -> int | None:
        """The limit of processes that the first program sets, if any."""
        if plan.limits.pids is None and quotas.processes_are_counted_within():
            return quotas.processes()
        return None if placement is None else placement.pids_inside

    def _place(self, plan: Plan, run: Path, progress: Progress) -> Placement | None:
        """Make control groups, or limits where there are none; reports limits that do not hold."""
        wanted = plan.limits
        if wanted.pids is None and not quotas.processes_are_counted_within():
            wanted = replace(wanted, pids=quotas.processes())
        if (wanted.cpus, wanted.memory, wanted.pids) == (None, None, None):
            return None
        from botbottle.backends.local import cgroups  # noqa: PLC0415 - as above

        placement = cgroups.place(f"{self.tag}{plan.slug}", wanted)
        if placement.cgroups:
            (run / "cgroups").write_text("".join(f"{path}\n" for path in placement.cgroups))
        why = "this account has no control group it may write to"
        for name in placement.missing if plan.limits.pids else ():
            progress(f"limits.{name} is not enforced: {why}.")
        for name in placement.weaker:
            progress(f"limits.{name} {quotas.WEAKER[name]}: {why}.")
        return placement

    # in a running bottle

    def exec(self, slug: str, command: Sequence[str], *, tty: bool) -> int:
        request = {"argv": list(command), "tty": tty, "env": terminal.variables() if tty else {}}
        connection = self._connect(slug)
        try:
            said = terminal.execute(connection, _exec(request), tty=tty)
        finally:
            connection.close()
        if not said.isdigit():
            raise NotRunning(f"{slug} ended before the command did.")
        return min(int(said), 255)

    def pipe(self, slug: str, program: str, *arguments: str) -> Pipes:
        packet = _exec({"argv": ["-c", program, *arguments], "own": True})
        connection = self._connect(slug)
        (read, into), (out, write), (err, write_err) = os.pipe(), os.pipe(), os.pipe()
        inode = os.fstat(read).st_ino
        try:
            status = terminal.send_request(connection, packet, (read, write, write_err))
        finally:
            connection.close()
            for fd in (read, write, write_err):
                os.close(fd)
        if status < 0:
            for fd in (into, out, err):
                os.close(fd)
            raise NotRunning(f"{slug} ended before the command did.")
        return Pipes(into, out, err, status, lambda: _reader_of(inode))

    def attach(self, slug: str) -> int:
        connection = self._connect(slug)
        try:
            said = terminal.attach(connection)
        finally:
            connection.close()
        if said is None:
            return 0
        if said[:1] == b"x":
            return int(said[1:])
        if self.life(slug).alive:
            raise BackendError(f"{slug} runs without a terminal, in the foreground of another command.")
        raise NotRunning(f"{slug} has been killed.")

    def copy_in(self, slug: str, source: Path, target: str) -> None:
        import tempfile  # noqa: PLC0415 - only here

        from botbottle.backends import archive as packing  # noqa: PLC0415

        run = self._run(slug)
        connection = self._connect(slug)
        try:
            with tempfile.TemporaryFile(dir=run) as archive, tempfile.TemporaryFile(dir=run) as printed:
                name = packing.pack(source, archive)
                request = {"argv": ["-c", packing.RECEIVE, target, name], "own": True}
                fds = (archive.fileno(), printed.fileno(), printed.fileno())
                said = terminal.request(connection, _exec(request), fds)
                printed.seek(0)
                problem = one_line(printed.read(600))
        finally:
            connection.close()
        if said != b"0":
            raise BackendError(f"{source} cannot be copied to {target}: {problem}")

    # ending

    def stop(self, slug: str, *, seconds: float = STOP_SECONDS) -> None:
        run = self._run(slug)
        try:
            connection = self._connect(slug)
            try:
                terminal.send(connection, b"stop %f" % seconds)
                connection.settimeout(seconds + GRACE_SECONDS)
                while connection.recv(1 << 16):
                    pass
            finally:
                connection.close()
        except (NotRunning, OSError):
            pass
        if not run_dir.free_within(run, 1.0):
            run_dir.kill_supervisor(run)
            if not run_dir.free_within(run, 5.0):
                raise BackendError(f"{slug} cannot be stopped: another process holds {run}/lock.")
        run_dir.tidy(run, attempts=100)

    def tidy(self, slug: str) -> None:
        run_dir.tidy(self._run(slug))

    def remove(self, slug: str) -> None:
        from botbottle.backends.local import cgroups  # noqa: PLC0415 - as above

        self.stop(slug)
        cgroups.remove([g for g in cgroups.leftovers(self.tag) if Path(g).name == f"{self.tag}{slug}"])
        run_dir.erase(self._run(slug))

    def rebuild(self, slug: str, dockerfile: str, progress: Progress) -> str:
        from botbottle.backends.local.rootfs_build import rebuild  # noqa: PLC0415 - a start does without Docker's library

        return rebuild(self.home, slug, dockerfile, progress)

    # the supervisor

    def _run(self, slug: str) -> Path:
        return self.home / "bottles" / slug / "run"

    def _connect(self, slug: str) -> socket.socket:
        run = self._run(slug)
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        directory = -1
        try:
            directory = os.open(run, os.O_PATH | os.O_DIRECTORY)  # its path may be too long for an address
            connection.connect(f"/proc/self/fd/{directory}/{supervisor_io.SOCKET}")
        except OSError as error:
            connection.close()
            raise NotRunning(f"{slug} is not running. Start it: `manage.py bottle start {slug}`.") from error
        finally:
            if directory >= 0:
                os.close(directory)
        return connection


def _exec(request: dict[str, object]) -> bytes:
    packet = b"exec " + json.dumps(request).encode()
    if len(packet) > supervisor.PACKET:
        raise BackendError("This command is too long. Put it into a file in the workspace and execute that.")
    return packet


def _reader_of(pipe: int) -> int | None:
    """The process whose standard input is this pipe. Inside the bottle it has another process id."""
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                found = os.stat(f"/proc/{entry.name}/fd/0")  # noqa: PTH116 - of hundreds
            except OSError:  # it ended meanwhile, or belongs to another account
                continue
            if found.st_ino == pipe and stat.S_ISFIFO(found.st_mode):
                return int(entry.name)
    return None


def find_bubblewrap() -> str:
    """Raises Unavailable."""
    for directory in os.get_exec_path():
        path = f"{directory}/bwrap"
        if os.access(path, os.X_OK):
            return path
    raise Unavailable(f"Bubblewrap (the program bwrap) is not installed. {HINT}")
