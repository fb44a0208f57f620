"""Start, run, stop and remove bottles' sandboxes. Each act is written to the journal, then reconciled.

Trust boundary: authors are accounts of this host or operators who may run bottles; a manifest is theirs.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from django.conf import settings
from django.contrib.auth.models import AnonymousUser, User
from django.db import connection, connections, transaction

from botbottle import backends
from botbottle.backends.base import STOP_SECONDS, Backend, Progress, Unavailable
from botbottle.core.plan_types import BackendError, Plan
from botbottle.launch import journal, plan_cache
from botbottle.launch import plan as plans
from botbottle.launch import start as launch
from botbottle.manifest import reader as manifests
from botbottle.manifest.reader import Manifest
from botbottle.models import Bottle
from botbottle.provision import trust
from egress.models import Publication
from egress.tables import homes, publishing, versions
from supervise import audit
from supervise.access import permissions
from supervise.bottles import build_log, images
from supervise.bottles import reconcile as reconciler
from supervise.bottles import records as bottles
from supervise.bottles.images import Image
from supervise.bottles.reconcile import backend_of, reconcile
from supervise.errors import NotPermitted, SuperviseError

__all__ = ["attach", "exec", "logs", "prepare", "ps", "reconcile", "rm", "run", "start", "stop"]

NO_EGRESS = "The egress process does not serve bottle {slug!r} yet. 'make up' starts it."


class NotStarted(SuperviseError):
    """The bottle could not be started; the message says what to do."""

    code = "not_started"


class BackendRefused(SuperviseError):
    """The backend could not do it; the message says why."""

    code = "backend"


@dataclass(frozen=True, slots=True)
class Prepared:
    bottle: Bottle
    backend: Backend
    plan: Plan
    manifest: Manifest


def manifest_path(slug: str) -> Path:
    return Path(settings.BOTTLE_MANIFESTS) / f"{bottles.check_name(slug)}.yaml"


def init(slug: str) -> Path:
    """Write a commented example manifest. Raises BadBottle when the bottle has a manifest."""
    path = manifest_path(slug)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(manifests.EXAMPLE)
    except FileExistsError as error:
        raise bottles.BadBottle(f"There is a manifest already: {path}. Edit that one.") from error
    return path


def plan(slug: str, *, command: Sequence[str] = (), image: Image | None = None) -> tuple[Manifest, Plan]:
    """Compile the manifest without starting or writing anything. Raises NotStarted."""
    path = manifest_path(slug)
    try:
        manifest = manifests.load(path)
        return manifest, _compile(manifest, slug, tuple(command), image)
    except (BackendError, OSError) as error:
        raise NotStarted(str(error)) from error


def prepare(slug: str, *, author: str, command: Sequence[str] = (), image: Image | None = None) -> Prepared:
    """Make what a start needs: record, first routes, live table, trust files, plan. Raises NotStarted."""
    path = manifest_path(slug)
    try:
        manifest = manifests.load(path)
        backend = backends.get(manifest.backend, Path(settings.BOTTLE_HOME))
        backend.available()
        _remove_from_old_backend(slug, manifest, author)
        bottle = bottles.record_manifest(slug, manifest, author=author)
        _ensure_served(bottle)
        directory = homes.bottle_directory(bottle)
        trust.write(directory, (directory / "ca.pem").read_bytes())
        image = image or images.in_force(slug, manifest)
        made = _compile(manifest, slug, image=image)
        plans.cache(made, manifest)
        Bottle.objects.filter(pk=bottle.pk).update(image=made.image[:500])
        images.show_dockerfile(bottle, image.dockerfile)
        made = replace(made, command=tuple(command)) if command else made
        return Prepared(bottle, backend, made, manifest)
    except (BackendError, OSError, ValueError) as error:
        raise NotStarted(str(error)) from error


def start(
    slug: str,
    *,
    author: str,
    command: Sequence[str] = (),
    progress: Progress,
    image: Image | None = None,
) -> Bottle:
    """Start a bottle in the background. A failure leaves it stopped, with the reason. Raises NotStarted.

    `image` replaces the one in force, for a rebuild that is about to become live.
    """
    _ensure_not_running(slug)
    prepared = _prepare_or_record(slug, author, command, image)
    directory = Path(prepared.plan.directory)
    journal.append(directory, journal.STARTING, who=author)
    reconciler.reconcile_bottle(prepared.bottle)
    try:
        with _with_start_log(directory, progress) as report:
            made = _with_built_image(prepared, report)
            launch.make_workspace(made)
            plan_cache.write_command(made)
            prepared.backend.start(made, report)
    except (BackendError, OSError, ValueError) as error:
        journal.append(directory, journal.FAILED, who=author, text=str(error))
        reconciler.reconcile_bottle(prepared.bottle)
        raise NotStarted(str(error)) from error
    journal.append(directory, journal.STARTED, who=author)
    return reconciler.reconcile_bottle(prepared.bottle)


def run(slug: str, *, author: str, command: Sequence[str] = (), progress: Progress) -> int:
    """Run a bottle on this terminal; returns the exit code of its command. Raises NotStarted."""
    _ensure_not_running(slug)
    prepared = _prepare_or_record(slug, author, command)
    try:
        made = _with_built_image(prepared, progress)
    except (BackendError, OSError, ValueError) as error:
        journal.append(Path(prepared.plan.directory), journal.FAILED, who=author, text=str(error))
        reconciler.reconcile_bottle(prepared.bottle)
        raise NotStarted(str(error)) from error
    try:
        with _without_database():
            return launch.run(prepared.backend, made, who=author, progress=progress)
    except (BackendError, OSError) as error:
        raise NotStarted(str(error)) from error
    finally:
        reconciler.reconcile_bottle(prepared.bottle)


def stop(slug: str, *, author: str, seconds: float = STOP_SECONDS) -> Bottle:
    """Ask the bottle to end, wait, then kill it. Does nothing if it is stopped. Raises BackendRefused."""
    bottle = bottles.get(slug)
    directory = homes.bottle_directory(bottle)
    if not journal.exists(directory):
        return bottle
    try:
        with _as_refusals():
            if backend_of(bottle).life(slug).alive:
                journal.append(directory, journal.STOPPING, who=author)
            backend_of(bottle).stop(slug, seconds=seconds)
    finally:
        reconciler.reconcile_bottle(bottle)
    return bottle


def rm(slug: str, *, author: str) -> Bottle:
    """Stop the bottle and remove its sandbox. The record, its routes and workspace stay."""
    bottle = stop(slug, author=author)
    if journal.exists(homes.bottle_directory(bottle)):
        with _as_refusals():
            backend_of(bottle).remove(slug)
        with transaction.atomic():
            audit.append("sandbox removed", actor_name=author, bottle_slug=slug)
    return bottle


def exec(slug: str, command: Sequence[str], *, author: str, tty: bool) -> int:
    """Run one more command in a running bottle, on this terminal. Raises BackendRefused."""
    bottle = bottles.get(slug)
    directory = homes.bottle_directory(bottle)
    with _as_refusals(), _without_database():
        return launch.execute(backend_of(bottle), slug, command, tty=tty, directory=directory, who=author)


def attach(slug: str, *, author: str) -> int:
    """Join this terminal to the bottle's main command; Ctrl-P Ctrl-Q detaches. Raises BackendRefused."""
    bottle = bottles.get(slug)
    with _as_refusals(), _without_database():
        return launch.attach(backend_of(bottle), slug, directory=homes.bottle_directory(bottle), who=author)


def logs(slug: str, *, follow: bool) -> Iterator[bytes]:
    """Yield what the main command printed: bytes from inside the bottle. Raises BackendRefused."""
    bottle = bottles.get(slug)
    with _as_refusals():
        yield from backend_of(bottle).logs(slug, follow=follow)


def ps() -> list[Bottle]:
    """Return every bottle with its reconciled state, as far as its backend answers."""
    if not reconcile():
        reconciler.reconcile_all()  # another process reconciles, and may be at another bottle
    return list(bottles.living().select_related("publication").defer("dockerfile", "manifest"))


def begin(verb: str, slug: str, *, actor: User | AnonymousUser) -> None:
    """Start or stop a bottle for a signed-in operator, in a new process: an image may take minutes.

    The outcome is in the bottle's state and problem. Raises NotPermitted, NoSuchBottle.
    """
    author = operator_name(actor)
    if not permissions.may_run_for(actor, bottles.get(slug)):
        raise NotPermitted(f"The bottle {slug} is assigned to other operators.")
    command = [sys.executable, str(settings.BASE_DIR / "manage.py"), "bottle", verb, slug, "--as", author]
    process = subprocess.Popen(  # noqa: S603 - our own interpreter and script, and a slug that exists
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # it outlives this process
    )
    threading.Thread(target=process.wait, name=f"bottle-{verb}", daemon=True).start()


def operator_name(user: User | AnonymousUser) -> str:
    """The name for the audit record. Raises NotPermitted."""
    if not permissions.may_run(user):
        raise NotPermitted("Starting and stopping bottles needs the permission 'run_bottle'.")
    return user.get_username()


def _prepare_or_record(
    slug: str, author: str, command: Sequence[str], image: Image | None = None
) -> Prepared:
    """Prepare a start; record a failure as the bottle's problem, if the bottle exists. Raises NotStarted."""
    try:
        return prepare(slug, author=author, command=command, image=image)
    except NotStarted as error:
        bottle = bottles.living().filter(slug=slug).first()
        if bottle is not None:
            directory = homes.bottle_directory(bottle)
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            journal.append(directory, journal.FAILED, who=author, text=error.message)
            reconciler.reconcile_bottle(bottle)
        raise


def _ensure_not_running(slug: str) -> None:
    """Raises NotStarted when the bottle runs: preparing would change files that it uses."""
    bottle = bottles.living().filter(slug=bottles.check_name(slug)).first()
    if bottle is None or not journal.exists(homes.bottle_directory(bottle)):
        return
    try:
        launch.ensure_not_running(backend_of(bottle), slug)
    except Unavailable:
        return  # `prepare` reports it, for the backend that the manifest names now
    except BackendError as error:
        raise NotStarted(str(error)) from error


def _remove_from_old_backend(slug: str, manifest: Manifest, author: str) -> None:
    """Remove the sandbox from the former backend, when the manifest names another one. Raises BackendError.

    The former backend must answer: two sandboxes must never share an identity, and a sandbox that is left
    there would never be found again.
    """
    bottle = bottles.living().filter(slug=slug).first()
    if bottle is None or bottle.backend == manifest.backend:
        return
    if not journal.exists(homes.bottle_directory(bottle)):
        return  # this home never started it
    former = backend_of(bottle)
    try:
        launch.ensure_not_running(former, slug)
        former.remove(slug)
    except Unavailable as error:
        raise BackendError(
            f"The bottle {slug} was in the backend {bottle.backend} before and may still run there, but that "
            f"does not answer: {error} Make it answer, name it in the manifest again, or give the bottle up: "
            f"bottle delete {slug}."
        ) from error
    with transaction.atomic():
        details = {"backend": bottle.backend}
        audit.append("sandbox removed", actor_name=author, bottle_slug=slug, details=details)


def _with_built_image(prepared: Prepared, progress: Progress) -> Plan:
    """Build the plan's image if it comes from a Dockerfile; then its files can be read. Raises BackendError.

    The image's configuration of the agent is merged with ours instead of being hidden by it.
    """
    if not prepared.plan.dockerfile:
        return prepared.plan
    built = prepared.backend.build(prepared.plan, progress)
    files = _compile(prepared.manifest, prepared.plan.slug, read_from=built).files
    return replace(prepared.plan, files=files)


def _compile(
    manifest: Manifest,
    slug: str,
    command: tuple[str, ...] = (),
    image: Image | None = None,
    read_from: str = "",
) -> Plan:
    home = Path(settings.BOTTLE_HOME)
    name = (image or images.in_force(slug, manifest)).name
    source = read_from or name or manifest.image
    made = plans.compile(
        manifest,
        slug=slug,
        home=home,
        existing=lambda path: backends.get(manifest.backend, home).read(source, path),
        extra_command=command,
    )
    return replace(made, image=name, dockerfile="") if name else made


def _ensure_served(bottle: Bottle) -> None:
    """Make sure that the newest table is live and the bottle's sockets answer. Raises NotStarted."""
    directory = homes.bottle_directory(bottle)
    live = Publication.objects.get(bottle=bottle).live_version
    if live == versions.current(bottle).version and launch.is_reachable(
        directory, supervise=bottle.supervise
    ):
        return
    try:
        publishing.publish(bottle)
    except publishing.NotPublished as error:
        raise NotStarted(f"Bottle {bottle.slug!r} cannot start: {error}.") from error
    if not launch.is_reachable(directory, supervise=bottle.supervise):
        raise NotStarted(NO_EGRESS.format(slug=bottle.slug))


@contextmanager
def _with_start_log(directory: Path, progress: Progress) -> Iterator[Progress]:
    """Also write the progress of a start to a log, which the bottle's page shows."""
    with closing(build_log.Log(directory / build_log.STARTING)) as log:

        def report(line: str) -> None:
            progress(line)
            log(line)

        yield report


@contextmanager
def _as_refusals() -> Iterator[None]:
    try:
        yield
    except BackendError as error:
        raise BackendRefused(str(error)) from error


@contextmanager
def _without_database() -> Iterator[None]:
    """Close the database connections: the command that follows may run for days."""
    if not connection.in_atomic_block:
        connections.close_all()
    yield
