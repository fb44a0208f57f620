"""The life of bottles' sandboxes: one verb per act. What was done is told to the journal, then made true.

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
from django.utils import timezone

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
from egress.models import Publication, RouteTableVersion
from egress.policy.merge import merge_gate_host, merge_route
from egress.tables import versions
from supervise import audit
from supervise.access import permissions
from supervise.bottles import build_log, images
from supervise.bottles import reconcile as settling
from supervise.bottles import records as bottles
from supervise.bottles.images import Image
from supervise.bottles.reconcile import backend_of, reconcile
from supervise.errors import NotPermitted, SuperviseError

__all__ = ["attach", "exec", "logs", "prepare", "ps", "reconcile", "rm", "run", "start", "stop"]

MANIFEST = "manifest"  # the author of a bottle's first routes
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
    """Write a commented manifest to begin with. Raises BadBottle when there is one."""
    path = manifest_path(slug)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(manifests.EXAMPLE)
    except FileExistsError as error:
        raise bottles.BadBottle(f"There is a manifest already: {path}. Edit that one.") from error
    return path


def plan(slug: str, *, command: Sequence[str] = (), image: Image | None = None) -> tuple[Manifest, Plan]:
    """What would be started. Nothing is, and nothing is written. Raises NotStarted."""
    path = manifest_path(slug)
    try:
        manifest = manifests.load(path)
        return manifest, _compile(manifest, slug, tuple(command), image)
    except (BackendError, OSError) as error:
        raise NotStarted(str(error)) from error


def prepare(slug: str, *, author: str, command: Sequence[str] = (), image: Image | None = None) -> Prepared:
    """Everything a start needs: record, first routes, live table, trust files, plan. Raises NotStarted."""
    path = manifest_path(slug)
    try:
        manifest = manifests.load(path)
        backend = backends.get(manifest.backend, Path(settings.BOTTLE_HOME))
        backend.available()
        _remove_from_old_backend(slug, manifest, author)
        bottle = _record_of(slug, manifest, author)
        _serve(bottle)
        directory = versions.bottle_directory(bottle)
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
    """In the background. A failure leaves the bottle stopped with the reason. Raises NotStarted.

    `image` takes the place of the one in force, for a rebuild that is about to be.
    """
    _ensure_not_running(slug)
    prepared = _prepared(slug, author, command, image)
    directory = Path(prepared.plan.directory)
    journal.append(directory, journal.STARTING, who=author)
    settling.reconcile_bottle(prepared.bottle)
    try:
        with _also_kept(directory, progress) as tell:
            made = _with_its_image(prepared, tell)
            launch.make_workspace(made)
            plan_cache.write_command(made)
            prepared.backend.start(made, tell)
    except (BackendError, OSError, ValueError) as error:
        journal.append(directory, journal.FAILED, who=author, text=str(error))
        settling.reconcile_bottle(prepared.bottle)
        raise NotStarted(str(error)) from error
    journal.append(directory, journal.STARTED, who=author)
    return settling.reconcile_bottle(prepared.bottle)


def run(slug: str, *, author: str, command: Sequence[str] = (), progress: Progress) -> int:
    """In the foreground, on this terminal: the exit code of the bottle's command. Raises NotStarted."""
    _ensure_not_running(slug)
    prepared = _prepared(slug, author, command)
    try:
        made = _with_its_image(prepared, progress)
    except (BackendError, OSError, ValueError) as error:
        journal.append(Path(prepared.plan.directory), journal.FAILED, who=author, text=str(error))
        settling.reconcile_bottle(prepared.bottle)
        raise NotStarted(str(error)) from error
    try:
        with _unconnected():
            return launch.run(prepared.backend, made, who=author, progress=progress)
    except (BackendError, OSError) as error:
        raise NotStarted(str(error)) from error
    finally:
        settling.reconcile_bottle(prepared.bottle)


def stop(slug: str, *, author: str, seconds: float = STOP_SECONDS) -> Bottle:
    """Ask, wait, then kill; nothing to stop is fine. Raises BackendRefused."""
    bottle = bottles.get(slug)
    directory = versions.bottle_directory(bottle)
    if not journal.exists(directory):
        return bottle
    try:
        with _translated():
            if backend_of(bottle).life(slug).alive:
                journal.append(directory, journal.STOPPING, who=author)
            backend_of(bottle).stop(slug, seconds=seconds)
    finally:
        settling.reconcile_bottle(bottle)
    return bottle


def rm(slug: str, *, author: str) -> Bottle:
    """Stop it and remove what is left of the sandbox. The record, its routes and workspace stay."""
    bottle = stop(slug, author=author)
    if journal.exists(versions.bottle_directory(bottle)):
        with _translated():
            backend_of(bottle).remove(slug)
        with transaction.atomic():
            audit.append("sandbox removed", actor_name=author, bottle_slug=slug)
    return bottle


def exec(slug: str, command: Sequence[str], *, author: str, tty: bool) -> int:
    """One more command in a running bottle, on this terminal. Raises BackendRefused."""
    bottle = bottles.get(slug)
    directory = versions.bottle_directory(bottle)
    with _translated(), _unconnected():
        return launch.execute(backend_of(bottle), slug, command, tty=tty, directory=directory, who=author)


def attach(slug: str, *, author: str) -> int:
    """This terminal on the bottle's main command; Ctrl-P Ctrl-Q leaves it running. Raises BackendRefused."""
    bottle = bottles.get(slug)
    with _translated(), _unconnected():
        return launch.attach(
            backend_of(bottle), slug, directory=versions.bottle_directory(bottle), who=author
        )


def logs(slug: str, *, follow: bool) -> Iterator[bytes]:
    """What the main command printed: bytes from inside the bottle. Raises BackendRefused."""
    bottle = bottles.get(slug)
    with _translated():
        yield from backend_of(bottle).logs(slug, follow=follow)


def ps() -> list[Bottle]:
    """Every bottle with its true state, as far as its backend answers."""
    if not reconcile():
        settling.reconcile_all()  # somebody else is at it, and may be at another bottle
    return list(bottles.living().select_related("publication").defer("dockerfile", "manifest"))


def begin(verb: str, slug: str, *, actor: User | AnonymousUser) -> None:
    """Start or stop a bottle for a signed-in operator, in a process of its own: an image may take minutes.

    How it went is in the bottle's state and problem. Raises NotPermitted, NoSuchBottle.
    """
    author = operator_name(actor)
    if not permissions.may_run_for(actor, bottles.get(slug)):
        raise NotPermitted(f"The bottle {slug} has operators of its own, and you are not one of them.")
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
    """Whom the audit record names. Raises NotPermitted."""
    if not permissions.may_run(user):
        raise NotPermitted("Starting and stopping bottles needs the permission 'run_bottle'.")
    return user.get_username()


def _prepared(slug: str, author: str, command: Sequence[str], image: Image | None = None) -> Prepared:
    """What cannot even be prepared is kept as the bottle's problem, where there is a bottle."""
    try:
        return prepare(slug, author=author, command=command, image=image)
    except NotStarted as error:
        bottle = bottles.living().filter(slug=slug).first()
        if bottle is not None:
            directory = versions.bottle_directory(bottle)
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            journal.append(directory, journal.FAILED, who=author, text=error.message)
            settling.reconcile_bottle(bottle)
        raise


def _ensure_not_running(slug: str) -> None:
    """Asked first: a bottle that runs is not prepared anew under its own feet. Raises NotStarted."""
    bottle = bottles.living().filter(slug=bottles.check_name(slug)).first()
    if bottle is None or not journal.exists(versions.bottle_directory(bottle)):
        return
    try:
        launch.ensure_not_running(backend_of(bottle), slug)
    except Unavailable:
        return  # preparing says so, for the backend that the manifest names by now
    except BackendError as error:
        raise NotStarted(str(error)) from error


def _remove_from_old_backend(slug: str, manifest: Manifest, author: str) -> None:
    """Out of the backend it was in, when the manifest names another by now. Raises BackendError.

    That one must answer: two sandboxes with one identity must never be, and nobody would look there again.
    """
    bottle = bottles.living().filter(slug=slug).first()
    if bottle is None or bottle.backend == manifest.backend:
        return
    if not journal.exists(versions.bottle_directory(bottle)):
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


def _with_its_image(prepared: Prepared, progress: Progress) -> Plan:
    """The plan, made once more when its image had yet to be built: only now can its files be looked into.

    What the image has of an agent's configuration is merged, and not hidden by ours. Raises BackendError.
    """
    if not prepared.plan.dockerfile:
        return prepared.plan
    built = prepared.backend.build(prepared.plan, progress)
    files = _compile(prepared.manifest, prepared.plan.slug, look_into=built).files
    return replace(prepared.plan, files=files)


def _compile(
    manifest: Manifest,
    slug: str,
    command: tuple[str, ...] = (),
    image: Image | None = None,
    look_into: str = "",
) -> Plan:
    home = Path(settings.BOTTLE_HOME)
    name = (image or images.in_force(slug, manifest)).name
    source = look_into or name or manifest.image
    made = plans.compile(
        manifest,
        slug=slug,
        home=home,
        existing=lambda path: backends.get(manifest.backend, home).read(source, path),
        extra_command=command,
    )
    return replace(made, image=name, dockerfile="") if name else made


def _record_of(slug: str, manifest: Manifest, author: str) -> Bottle:
    """The bottle's row, made by the first start. The manifest's routes are the first ones it ever gets.

    After that the table is the operators': what they took away must not come back with a restart.
    """
    if not bottles.living().filter(slug=slug).exists():
        bottles.create(slug, author=author, backend=manifest.backend)
    with transaction.atomic():
        newest = versions.lock(bottles.get(slug))
        bottle = bottles.get(slug)
        if not bottle.manifest:
            _give_first_routes(newest, manifest, author)
        if bottle.supervise != manifest.supervise:
            versions.must_publish_again(bottle)
        Bottle.objects.filter(pk=bottle.pk).update(
            manifest=manifest.text, backend=manifest.backend, supervise=manifest.supervise
        )
    return bottles.get(slug)


def _give_first_routes(newest: RouteTableVersion, manifest: Manifest, author: str) -> None:
    table, now = newest.table, timezone.now()
    for route in manifest.routes:
        table = merge_route(table, route, now=now, operator=True).table
    for host in manifest.gate_hosts:
        table = merge_gate_host(table, host).table
    if table != newest.table:
        made = versions.append(newest, table, author=MANIFEST, cause="routes of the manifest")
        audit.append(
            "manifest's routes given",
            actor_name=author,
            bottle_slug=newest.bottle.slug,
            details={"version": made.version},
        )


def _serve(bottle: Bottle) -> None:
    """The newest table is live and the bottle's sockets answer. Raises NotStarted."""
    directory = versions.bottle_directory(bottle)
    live = Publication.objects.get(bottle=bottle).live_version
    if live == versions.current(bottle).version and launch.is_reachable(
        directory, supervise=bottle.supervise
    ):
        return
    try:
        versions.publish(bottle)
    except versions.NotPublished as error:
        raise NotStarted(f"Bottle {bottle.slug!r} cannot start: {error}.") from error
    if not launch.is_reachable(directory, supervise=bottle.supervise):
        raise NotStarted(NO_EGRESS.format(slug=bottle.slug))


@contextmanager
def _also_kept(directory: Path, progress: Progress) -> Iterator[Progress]:
    """What a start says, also for the bottle's page: whoever began it there has no terminal to read it on."""
    with closing(build_log.Log(directory / build_log.STARTING)) as kept:

        def tell(line: str) -> None:
            progress(line)
            kept(line)

        yield tell


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except BackendError as error:
        raise BackendRefused(str(error)) from error


@contextmanager
def _unconnected() -> Iterator[None]:
    """What follows may take days: hold no connection to the database meanwhile."""
    if not connection.in_atomic_block:
        connections.close_all()
    yield
