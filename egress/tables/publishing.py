"""Publishes a bottle's newest route table: writes the files for the proxy, and records what is live."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from django.conf import settings
from django.db.models import F
from django.utils import timezone

from botbottle.core import locks
from botbottle.core.files import write_atomically
from botbottle.models import Bottle
from egress.contract.snapshot import render_gate, render_routes
from egress.models import Publication, RouteTableVersion
from egress.policy.merge import takes_away
from egress.policy.table import Snapshot
from egress.tables.homes import bottle_directory, home_id, home_of
from egress.tables.proxy_client import ProxyClient, ProxyDown
from egress.tables.versions import current, of_newest

_LOCK = ".publish.lock"  # one publisher at a time
UNWRITTEN = "the route table could not be written"


class NotPublished(Exception):
    """The message says why the data plane does not have the newest version."""


class ProxyAway(NotPublished):
    """The bottle's egress process does not answer: it would not for another of its bottles either."""


class PublishedElsewhere(NotPublished):
    """The bottle belongs to another home, which has to be notified. Nothing has failed."""

    def __init__(self, home: str) -> None:
        super().__init__("the machine that the bottle belongs to makes it live")
        self.home = home


def proxy_client() -> ProxyClient:
    """A client for the proxy as it runs now: a restart may have changed the number of its processes."""
    return ProxyClient(Path(settings.BOTTLE_HOME) / "run", settings.EGRESS_PROCESSES)


def process_of(bottle: Bottle) -> int:
    """The number of the egress process that serves the bottle."""
    return proxy_client().owner(bottle.slug)


def publish(bottle: Bottle) -> int:
    """Make the newest version live, and return its number once the proxy has acknowledged it.

    Concurrent publishers queue on a file lock and each writes the version that is newest by then, so the
    files never go back to an older version, and the proxy reads them while nobody writes.

    Raises NotPublished, and records why for the console; another home's bottle is left to that home
    (PublishedElsewhere).
    """
    _check_is_local(bottle)
    with (
        _recording_problems(bottle, UNWRITTEN),
        locks.lock(bottle_directory(bottle) / _LOCK),
    ):
        publication = Publication.objects.filter(bottle=bottle)
        version = _write_or_cut_off(bottle)
        written = {"version": version, "published_at": timezone.now()}
        try:
            live_at = _acknowledged(bottle, version)
        except (ProxyDown, NotPublished):
            publication.update(**written)
            raise
        publication.update(**written, live_version=version, live_at=live_at, problem="")
        return version


def _check_is_local(bottle: Bottle) -> None:
    """Only the proxy of the bottle's home reads its files, and only its acknowledgement makes them live."""
    if (home := home_of(bottle)) != home_id():
        raise PublishedElsewhere(home)


def unpublish(bottle: Bottle) -> None:
    """Remove a deleted bottle's snapshot: no file means deny all. Raises NotPublished, and records why."""
    _check_is_local(bottle)
    with _recording_problems(bottle, "the route table could not be removed"):
        _unpublish(bottle)


def must_publish_again(bottle: Bottle) -> None:
    """Something other than the table changed: until the proxy acknowledges it, `catch_up` keeps trying."""
    Publication.objects.filter(bottle=bottle).update(live_version=0)


def lower_live_versions(
    live_versions: Mapping[str, int], serves: Callable[[str], bool] = lambda _: True
) -> None:
    """Record what a restarted egress process serves, by slug, so that `catch_up` publishes what is older.

    Covers the bottles that the process `serves`. Never raises a number: 0 may mean that the files must be
    written again, whatever version is served.
    """
    living = Publication.objects.filter(home=home_id()).exclude(bottle__state=Bottle.State.DELETED)
    for publication in living.select_related("bottle"):
        if not serves(publication.bottle.slug):
            continue
        version = live_versions.get(publication.bottle.slug, 0)
        Publication.objects.filter(pk=publication.pk, live_version__gt=version).update(live_version=version)


def record_problems(problems: Mapping[str, list[str]], serves: Callable[[str], bool]) -> None:
    """Record the problems that an egress process reports, by slug. Its other bottles have none."""
    living = Publication.objects.filter(home=home_id()).exclude(bottle__state=Bottle.State.DELETED)
    for pk, slug, known in living.values_list("pk", "bottle__slug", "proxy_problems"):
        if serves(slug) and known != (reported := problems.get(slug, [])):
            Publication.objects.filter(pk=pk).update(proxy_problems=reported)


def catch_up() -> None:
    """Publish what lags behind and remove the files of deleted bottles, after a full disk or a crash.

    Covers this home only. In random order: the first bottle that an egress process does not answer for ends
    that process's round, and should not be the same in every round.
    """
    local = Bottle.objects.filter(publication__home=home_id()).order_by("?")
    lagging = (
        local.exclude(state=Bottle.State.DELETED)
        .annotate(newest=of_newest("version"))
        .filter(publication__live_version__lt=F("newest"))
    )
    deleted = local.filter(state=Bottle.State.DELETED, publication__version__gt=0)
    away: set[int] = set()
    _for_each_reachable(publish, lagging, away)
    _for_each_reachable(unpublish, deleted, away)


def _for_each_reachable(
    change: Callable[[Bottle], object], bottles: Iterable[Bottle], away: set[int]
) -> None:
    """One broken bottle does not delay the others, and one absent process not those of another."""
    for bottle in bottles:
        process = process_of(bottle)
        if process not in away:
            try:
                change(bottle)
            except ProxyAway:
                away.add(process)
            except NotPublished:
                pass  # recorded, and tried again


def _write_or_cut_off(bottle: Bottle) -> int:
    """Write the newest table; if that fails and it takes something away, cut the bottle off from everything.

    What was taken away must neither stay live nor come back with a restart of the proxy. Removing the files
    needs no room on the disk. Raises NotPublished, ProxyDown and OSError.
    """
    try:
        return _write(bottle)
    except OSError as error:
        if not _takes_away(bottle):
            raise
        _remove_files(bottle_directory(bottle))
        must_publish_again(bottle)
        if settings.EGRESS_PROXY and (ack := proxy_client().reload(bottle.slug)).version:
            raise NotPublished(
                f"{UNWRITTEN}, and the egress proxy still serves version {ack.version}"
            ) from error
        raise NotPublished(
            f"{UNWRITTEN}: {error.strerror or error}. It takes something away, so the bottle is cut off from"
            " everything until it can be written"
        ) from error


def _takes_away(bottle: Bottle) -> bool:
    """Whether the newest table allows less than the one that was written last."""
    written = RouteTableVersion.objects.filter(
        bottle=bottle, version=F("bottle__publication__version")
    ).first()
    return written is not None and takes_away(written.table, current(bottle).table, now=timezone.now())


def _write(bottle: Bottle) -> int:
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
    _write_identity(newest.bottle)
    # The gate goes first: a host that only the gate allows is not reachable. Not synced, because agents wait:
    # a power cut leaves an older file or one that fails its digest, which the proxy reports at its start and
    # `catch_up` repairs. On a full disk the files are overwritten: the digest reveals a half-written one.
    write_atomically(directory / "gate.yaml", render_gate(snapshot), synced=False, also_when_full=True)
    write_atomically(directory / "routes.yaml", render_routes(snapshot), synced=False, also_when_full=True)
    return newest.version


def _acknowledged(bottle: Bottle, written: int) -> datetime | None:
    """Have the proxy load the files, and return since when they are live. Raises NotPublished, ProxyDown."""
    if not settings.EGRESS_PROXY:
        return timezone.now()
    ack = proxy_client().reload(bottle.slug)
    if ack.version != written or ack.problem:
        why = (ack.problem or f"it serves version {ack.version}").rstrip(".")
        raise NotPublished(f"the egress proxy did not take version {written}: {why}")
    return ack.loaded_at


def _write_identity(bottle: Bottle) -> None:
    """The token by which the proxy knows the bottle, and whether it may ask. Written only when it changes."""
    path = bottle_directory(bottle) / "identity.json"
    identity = {"slug": bottle.slug, "token_sha256": bottle.token_digest, "supervise": bottle.supervise}
    text = json.dumps(identity) + "\n"
    if not path.is_file() or path.read_text() != text:  # synced writes cost the most
        write_atomically(path, text, also_when_full=True)


def _remove_files(directory: Path) -> None:
    """Without them the proxy forgets the bottle: it denies everything and cuts open connections."""
    for name in ("routes.yaml", "gate.yaml", "identity.json"):
        (directory / name).unlink(missing_ok=True)


def _unpublish(bottle: Bottle) -> None:
    directory = bottle_directory(bottle)
    with locks.lock(directory / _LOCK):
        if not Bottle.objects.filter(slug=bottle.slug).exclude(state=Bottle.State.DELETED).exists():
            _remove_files(directory)
    if settings.EGRESS_PROXY:
        proxy_client().reload(bottle.slug)
    Publication.objects.filter(bottle=bottle).update(version=0, live_version=0, published_at=None, problem="")


@contextmanager
def _recording_problems(bottle: Bottle, what: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ProxyDown, NotPublished) as error:
        problem = f"{what}: {error.strerror or error}" if isinstance(error, OSError) else str(error)
        Publication.objects.filter(bottle=bottle).update(problem=problem)
        raise (ProxyAway if isinstance(error, ProxyDown) else NotPublished)(problem) from error
