"""Versioned route tables of bottles: read the newest, append one, publish it to the data plane's files."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from botbottle.models import Bottle

from .models import Publication, RouteTableVersion
from .policy import RouteTable, Snapshot
from .snapshot import render_gate, render_routes, write_atomically


def bottle_directory(bottle: Bottle) -> Path:
    return Path(settings.BOTTLE_HOME) / "bottles" / bottle.slug


def current(bottle: Bottle) -> RouteTableVersion:
    """The newest version. Every bottle has one: it is created with an empty table."""
    return RouteTableVersion.objects.filter(bottle=bottle).latest("version")


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
    back to an older version. Raises OSError when the files cannot be written.
    """
    directory = bottle_directory(bottle)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _exclusive(directory / ".publish.lock"):
        newest = current(bottle)
        snapshot = Snapshot(
            bottle=bottle.slug,
            version=newest.version,
            table=newest.table,
            written_at=timezone.now().isoformat(timespec="seconds"),
        )
        # The gate goes first: a host that is only at the gate reaches nothing.
        write_atomically(directory / "gate.yaml", render_gate(snapshot))
        write_atomically(directory / "routes.yaml", render_routes(snapshot))
        Publication.objects.filter(bottle=bottle).update(
            version=newest.version, published_at=timezone.now(), problem=""
        )
    return newest.version


def unpublish(bottle: Bottle) -> None:
    """Take a deleted bottle's snapshot away: no file means deny all."""
    directory = bottle_directory(bottle)
    for name in ("routes.yaml", "gate.yaml", ".publish.lock"):
        (directory / name).unlink(missing_ok=True)
    Publication.objects.filter(bottle=bottle).update(version=0, published_at=None)


def note_problem(bottle: Bottle, problem: str) -> None:
    Publication.objects.filter(bottle=bottle).update(problem=problem)


@contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
