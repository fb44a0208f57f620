"""Versioned route tables of bottles: read the newest, append one, publish it to the data plane's files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from secrets import token_hex

from django.conf import settings
from django.db import connection, transaction
from django.db.models import F, OuterRef, Subquery
from django.dispatch import Signal
from django.utils import timezone

from botbottle.core import locks
from botbottle.core.files import write_atomically
from botbottle.core.home import made_once
from botbottle.models import Bottle
from egress.contract.snapshot import render_gate, render_routes
from egress.models import Publication, RouteTableVersion
from egress.policy.decide import RouteTable, Snapshot
from egress.policy.merge import takes_away
from egress.tables.proxy_client import ProxyClient, ProxyDown

_LOCK = ".publish.lock"  # one publisher at a time
UNWRITTEN = "the route table could not be written"
elsewhere = Signal()  # with `home`: one of its bottles changed, and only there it can be applied


class NotPublished(Exception):
    """The message says why the data plane does not have the newest version."""


class ProxyAway(NotPublished):
    """The bottle's egress process does not answer: it would not for another of its bottles either."""


class PublishedElsewhere(NotPublished):
    """The bottle's own home does it, and was told. Nothing has failed."""


def home_id() -> str:
    """This home's name in a database that several may share. Only its own proxy serves a home's bottles."""
    return made_once(Path(settings.BOTTLE_HOME) / "home_id", lambda: token_hex(16))


def is_ours(bottle: Bottle) -> bool:
    if Bottle.publication.is_cached(
        bottle
    ):  # it may be out of date, but a bottle never moves to another home
        return bottle.publication.home == home_id()
    return Publication.objects.filter(bottle=bottle, home=home_id()).exists()


def ours(bottle_ids: Iterable[int]) -> set[int]:
    """Those of them that are this home's."""
    mine = Publication.objects.filter(bottle__in=set(bottle_ids), home=home_id())
    return set(mine.values_list("bottle", flat=True))


def other_homes() -> set[str]:
    """Those that keep bottles in this database too."""
    living = Publication.objects.exclude(bottle__state=Bottle.State.DELETED)
    return set(living.exclude(home=home_id()).values_list("home", flat=True).distinct())


def call_home(bottle: Bottle) -> None:
    """Have another home's bottle looked after there, now rather than in the next round."""
    elsewhere.send(sender=Bottle, home=Publication.objects.get(bottle=bottle).home)


def bottle_directory(bottle: Bottle) -> Path:
    return Path(settings.BOTTLE_HOME) / "bottles" / bottle.slug


def current(bottle: Bottle, **also: Subquery) -> RouteTableVersion:
    """The newest version, with its bottle. Every bottle has one: it is created with an empty table.

    `also` are read by the same query, and become attributes of the version.
    """
    versions = RouteTableVersion.objects.select_related("bottle__publication").filter(bottle=bottle)
    return versions.annotate(**also).latest("version")


def lock(bottle: Bottle, **also: Subquery) -> RouteTableVersion:
    """The newest version, held until the transaction ends so that two changes cannot take one number."""
    if connection.features.has_select_for_update:  # on SQLite, the transaction itself is the lock
        Bottle.objects.select_for_update().values_list("pk").get(pk=bottle.pk)
    return current(bottle, **also)


def of_newest(column: str, *, bottle: str = "pk") -> Subquery:
    """That column of each bottle's newest version, to annotate with: one look into an index for each."""
    newest = RouteTableVersion.objects.filter(bottle=OuterRef(bottle)).order_by("-version")
    return Subquery(newest.values(column)[:1])


def hosts_reached() -> frozenset[str]:
    """Every host that a living bottle has a route to, by one query."""
    living = Bottle.objects.exclude(state=Bottle.State.DELETED)
    tables = living.annotate(table=of_newest("content")).values_list("table", flat=True)
    return frozenset(route["host"] for table in tables for route in table["routes"])


def create_first(bottle: Bottle, *, author: str) -> RouteTableVersion:
    """An empty table. Numbers go on from a deleted bottle of the same name.

    The proxy, which takes no table older than the live one, must not go on serving the dead one's.
    """
    Publication.objects.create(bottle=bottle, home=home_id())
    namesakes = Bottle.objects.filter(slug=bottle.slug).annotate(newest=of_newest("version"))
    latest = max((number or 0 for number in namesakes.values_list("newest", flat=True)), default=0)
    return RouteTableVersion.objects.create(
        bottle=bottle,
        version=latest + 1,
        content=RouteTable().as_dict(),
        author=author,
        cause="bottle created",
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


def put_in_force(
    parent: RouteTableVersion, table: RouteTable, *, author: str, cause: str
) -> RouteTableVersion:
    """The next version, published once it is committed. Call inside the transaction that called `lock`.

    When publishing fails, the publication says why, and the caretaker tries again.
    """
    made = append(parent, table, author=author, cause=cause)
    transaction.on_commit(lambda: publish_or_note(made.bottle), robust=True)
    return made


def rollback(bottle: Bottle, version: int, *, author: str) -> RouteTableVersion:
    """A new version with an old one's content, put in force."""
    with transaction.atomic():
        newest = lock(bottle)
        old = RouteTableVersion.objects.get(bottle=bottle, version=version)
        return put_in_force(newest, old.table, author=author, cause=f"rollback to v{version}")


def proxy_client() -> ProxyClient:
    """As it is now: a restart may have changed how many processes it has."""
    return ProxyClient(Path(settings.BOTTLE_HOME) / "run", settings.EGRESS_PROCESSES)


def process_of(bottle: Bottle) -> int:
    """Which egress process serves it: one that does not answer would not for its other bottles either."""
    return proxy_client().owner(bottle.slug)


def publish(bottle: Bottle) -> int:
    """Make the newest version live, and return its number once the proxy has acknowledged it.

    Concurrent publishers queue on a file lock and each writes what is newest by then, so the files never go
    back to an older version, and the proxy reads them while nobody writes. Raises NotPublished, and notes why
    for the console; another home's bottle is left to that home (PublishedElsewhere).
    """
    _check_is_ours(bottle)
    with (
        _noting_problems(bottle, UNWRITTEN),
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


def _check_is_ours(bottle: Bottle) -> None:
    """What is written here no other home's proxy reads; its word alone makes a version live."""
    if not is_ours(bottle):
        call_home(bottle)
        raise PublishedElsewhere("the machine that the bottle belongs to makes it live")


def publish_or_note(bottle: Bottle) -> None:
    """For who cannot do anything about it if it fails."""
    with suppress(NotPublished):
        publish(bottle)


def unpublish(bottle: Bottle) -> None:
    """Take a deleted bottle's snapshot away: no file means deny all. Raises NotPublished, and notes why."""
    _check_is_ours(bottle)
    with _noting_problems(bottle, "the route table could not be removed"):
        _unpublish(bottle)


def must_publish_again(bottle: Bottle) -> None:
    """Something other than the table changed: until the proxy acknowledges it, `catch_up` keeps trying."""
    Publication.objects.filter(bottle=bottle).update(live_version=0)


def lower_live_versions(
    live_versions: Mapping[str, int], serves: Callable[[str], bool] = lambda _: True
) -> None:
    """What a restarted egress process serves, by slug: where that is less than it was, `catch_up` goes on.

    It speaks for the bottles that it `serves`. Never raises a number: 0 may mean that the files are to be
    written again, whatever is served.
    """
    living = Publication.objects.filter(home=home_id()).exclude(bottle__state=Bottle.State.DELETED)
    for publication in living.select_related("bottle"):
        if not serves(publication.bottle.slug):
            continue
        version = live_versions.get(publication.bottle.slug, 0)
        Publication.objects.filter(pk=publication.pk, live_version__gt=version).update(live_version=version)


def note_problems(problems: Mapping[str, list[str]], serves: Callable[[str], bool]) -> None:
    """What an egress process says is wrong now, by slug. All others of those that it `serves` are well."""
    living = Publication.objects.filter(home=home_id()).exclude(bottle__state=Bottle.State.DELETED)
    for pk, slug, known in living.values_list("pk", "bottle__slug", "proxy_problems"):
        if serves(slug) and known != (said := problems.get(slug, [])):
            Publication.objects.filter(pk=pk).update(proxy_problems=said)


def catch_up() -> None:
    """Publish what lags behind, remove what outlived its bottle: what a full disk or a dead process left.

    Only this home's. In no order: the first one that an egress process does not answer for ends that
    process's round, and should not be the same in every round.
    """
    ours = Bottle.objects.filter(publication__home=home_id()).order_by("?")
    lagging = (
        ours.exclude(state=Bottle.State.DELETED)
        .annotate(newest=of_newest("version"))
        .filter(publication__live_version__lt=F("newest"))
    )
    over = ours.filter(state=Bottle.State.DELETED, publication__version__gt=0)
    away: set[int] = set()
    _for_each_reachable(publish, lagging, away)
    _for_each_reachable(unpublish, over, away)


def _for_each_reachable(
    change: Callable[[Bottle], object], bottles: Iterable[Bottle], away: set[int]
) -> None:
    """One broken bottle does not hold up the others, and one process that is away not those of another."""
    for bottle in bottles:
        process = process_of(bottle)
        if process not in away:
            try:
                change(bottle)
            except ProxyAway:
                away.add(process)
            except NotPublished:
                pass  # noted, and tried again


def _write_or_cut_off(bottle: Bottle) -> int:
    """What was taken away must neither stay live nor come back with a restart of the proxy.

    So where a table that takes something away cannot be written, the bottle's files are removed, which needs
    no room, and everything is denied until it can be. Raises NotPublished, ProxyDown and OSError.
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
    # The gate goes first: a host that is only at the gate reaches nothing. Not synced, as agents wait for it:
    # what a power cut leaves is older or fails its digest; the proxy's start shows it, `catch_up` mends it.
    # With a full disk they are overwritten: who reads half of one sees that by its digest.
    write_atomically(directory / "gate.yaml", render_gate(snapshot), synced=False, also_when_full=True)
    write_atomically(directory / "routes.yaml", render_routes(snapshot), synced=False, also_when_full=True)
    return newest.version


def _acknowledged(bottle: Bottle, written: int) -> datetime | None:
    """Since when it is live: exactly what was written, and the rest, token and sockets, in order."""
    if not settings.EGRESS_PROXY:
        return timezone.now()
    ack = proxy_client().reload(bottle.slug)
    if ack.version != written or ack.problem:
        why = (ack.problem or f"it serves version {ack.version}").rstrip(".")
        raise NotPublished(f"the egress proxy did not take version {written}: {why}")
    return ack.loaded_at


def _write_identity(bottle: Bottle) -> None:
    """By which token the proxy knows it, and whether it may ask. Rarely new; synced writes cost the most."""
    path = bottle_directory(bottle) / "identity.json"
    identity = {"slug": bottle.slug, "token_sha256": bottle.token_digest, "supervise": bottle.supervise}
    text = json.dumps(identity) + "\n"
    if not path.is_file() or path.read_text() != text:
        write_atomically(path, text, also_when_full=True)


def _remove_files(directory: Path) -> None:
    """Without them the proxy forgets the bottle: it denies all and cuts what is open."""
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
def _noting_problems(bottle: Bottle, what: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ProxyDown, NotPublished) as error:
        problem = f"{what}: {error.strerror or error}" if isinstance(error, OSError) else str(error)
        Publication.objects.filter(bottle=bottle).update(problem=problem)
        raise (ProxyAway if isinstance(error, ProxyDown) else NotPublished)(problem) from error
