"""Versioned route tables of bottles: read the newest, append one, publish it to the data plane's files."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from django.conf import settings
from django.db import transaction
from django.db.models import F, Max
from django.utils import timezone

from botbottle.models import Bottle

from .models import Publication, RouteTableVersion
from .policy import RouteTable, Snapshot
from .snapshot import render_gate, render_routes, write_atomically


class NotPublished(Exception):
    """The message says why the data plane does not have the newest version."""


def bottle_directory(bottle: Bottle) -> Path:
    return Path(settings.BOTTLE_HOME) / "bottles" / bottle.slug


def current(bottle: Bottle) -> RouteTableVersion:
    """The newest version. Every bottle has one: it is created with an empty table."""
    return RouteTableVersion.objects.select_related("bottle").filter(bottle=bottle).latest("version")


def lock(bottle: Bottle) -> RouteTableVersion:
    """The newest version, held until the transaction ends so that two changes cannot take one number."""
    Bottle.objects.select_for_update().get(pk=bottle.pk)
    return current(bottle)


def create_first(bottle: Bottle, *, author: str) -> RouteTableVersion:
    Publication.objects.create(bottle=bottle)
    return RouteTableVersion.objects.create(
        bottle=bottle, version=1, content=RouteTable().as_dict(), author=author, cause="bottle created"
    )


def append(parent: RouteTableVersion, table: RouteTable, *, author: str, cause: str) -> RouteTableVersion:
    """The next version. Call inside the transaction that called `lock`."""
    return RouteTableVersion.objects.create(
        bottle=parent.bottle,
        version=parent.version + 1,
        parent=parent,
        content=table.as_dict(),
        author=author,
        cause=cause,
    )


def rollback(bottle: Bottle, version: int, *, author: str) -> RouteTableVersion:
    """A new version with an old one's content."""
    with transaction.atomic():
        newest = lock(bottle)
        old = RouteTableVersion.objects.get(bottle=bottle, version=version)
        return append(newest, old.table, author=author, cause=f"rollback to v{version}")


def publish(bottle: Bottle) -> int:
    """Write the newest version's snapshot for the proxy and return its number.

    Concurrent publishers queue on a file lock and each writes what is newest by then, so the files never go
    back to an older version. Raises NotPublished, and notes why for the console.
    """
    with _noting_problems(bottle, "the route table could not be written"):
        return _publish(bottle)


def unpublish(bottle: Bottle) -> None:
    """Take a deleted bottle's snapshot away: no file means deny all. Raises NotPublished, and notes why."""
    with _noting_problems(bottle, "the route table could not be removed"):
        _unpublish(bottle)


def catch_up() -> None:
    """Publish what lags behind, remove what outlived its bottle: what a full disk or a dead process left."""
    lagging = (
        Bottle.objects.exclude(state=Bottle.State.DELETED)
        .annotate(newest=Max("table_versions__version"))
        .filter(publication__version__lt=F("newest"))
    )
    for bottle in lagging:
        with suppress(NotPublished):
            publish(bottle)
    for deleted in Bottle.objects.filter(state=Bottle.State.DELETED, publication__version__gt=0):
        with suppress(NotPublished):
            unpublish(deleted)


def _publish(bottle: Bottle) -> int:
    with _exclusive(bottle_directory(bottle)):
        newest = current(bottle)
        if newest.bottle.state == Bottle.State.DELETED:
            # Its name, and so its directory, may belong to another bottle by now.
            raise NotPublished("the bottle was deleted")
        snapshot = Snapshot(
            bottle=bottle.slug,
            version=newest.version,
            table=newest.table,
            written_at=timezone.now().isoformat(timespec="seconds"),
        )
        directory = bottle_directory(bottle)
        # The gate goes first: a host that is only at the gate reaches nothing.
        write_atomically(directory / "gate.yaml", render_gate(snapshot))
        write_atomically(directory / "routes.yaml", render_routes(snapshot))
        Publication.objects.filter(bottle=bottle).update(
            version=newest.version, published_at=timezone.now(), problem=""
        )
    return newest.version


def _unpublish(bottle: Bottle) -> None:
    directory = bottle_directory(bottle)
    with _exclusive(directory):
        if not Bottle.objects.filter(slug=bottle.slug).exclude(state=Bottle.State.DELETED).exists():
            for name in ("routes.yaml", "gate.yaml"):
                (directory / name).unlink(missing_ok=True)
    Publication.objects.filter(bottle=bottle).update(version=0, published_at=None, problem="")


@contextmanager
def _noting_problems(bottle: Bottle, what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        problem = f"{what}: {error.strerror or error}"
        Publication.objects.filter(bottle=bottle).update(problem=problem)
        raise NotPublished(problem) from error


@contextmanager
def _exclusive(directory: Path) -> Iterator[None]:
    """One publisher at a time. The lock's file stays: removing it would let two hold "the" lock."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (directory / ".publish.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
