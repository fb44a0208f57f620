"""Versioned route tables of bottles in the database: read the newest, append one."""

from __future__ import annotations

from django.db import connection
from django.db.models import OuterRef, Subquery

from botbottle.models import Bottle
from egress.models import Publication, RouteTableVersion
from egress.policy.table import RouteTable
from egress.tables.homes import home_id


def current(bottle: Bottle, **also: Subquery) -> RouteTableVersion:
    """The newest version, with its bottle. Every bottle has one: it is created with an empty table.

    The same query reads `also`, which become attributes of the version.
    """
    versions = RouteTableVersion.objects.select_related("bottle__publication").filter(bottle=bottle)
    return versions.annotate(**also).latest("version")


def lock(bottle: Bottle, **also: Subquery) -> RouteTableVersion:
    """The newest version, locked until the transaction ends so that two changes cannot use one number."""
    if connection.features.has_select_for_update:  # on SQLite, the transaction itself is the lock
        Bottle.objects.select_for_update().values_list("pk").get(pk=bottle.pk)
    return current(bottle, **also)


def of_newest(column: str, *, bottle: str = "pk") -> Subquery:
    """That column of each bottle's newest version, as an annotation: one index lookup per bottle."""
    newest = RouteTableVersion.objects.filter(bottle=OuterRef(bottle)).order_by("-version")
    return Subquery(newest.values(column)[:1])


def hosts_reached() -> frozenset[str]:
    """Every host that a living bottle has a route to, by one query."""
    living = Bottle.objects.exclude(state=Bottle.State.DELETED)
    tables = living.annotate(table=of_newest("content")).values_list("table", flat=True)
    return frozenset(route["host"] for table in tables for route in table["routes"])


def create_first(bottle: Bottle, *, author: str) -> RouteTableVersion:
    """Create a new bottle's empty table. Its number continues those of a deleted bottle of the same name.

    The proxy accepts no table older than the live one, and must not keep serving the deleted bottle's.
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


def roll_back(newest: RouteTableVersion, version: int, *, author: str) -> RouteTableVersion:
    """Append a version with an old one's content. Call inside the transaction that called `lock`."""
    old = RouteTableVersion.objects.get(bottle=newest.bottle, version=version)
    return append(newest, old.table, author=author, cause=f"rollback to v{version}")
