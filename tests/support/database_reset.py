"""Empties the database after a test that commits, and leaves what migrations put there.

Django's own flush also takes the migrations' rows away and makes all permissions again, which costs more than
most of the tests do.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.contrib.contenttypes.models import ContentType
from django.db import connection, transaction

# Migrations fill these.
FILLED = (
    "auth_group",
    "auth_group_permissions",
    "auth_permission",
    "django_content_type",
    "django_migrations",
)
Rows = dict[str, list[tuple[Any, ...]]]


class DatabaseReset:
    """Remembers a freshly migrated database, one for each that tests run on."""

    def __init__(self) -> None:
        self._filled: dict[str, Rows] = {}

    def remember(self) -> None:
        self._filled[_name()] = _rows()

    def __call__(self) -> None:
        tables = connection.introspection.table_names()
        with transaction.atomic(), connection.cursor() as cursor, without_triggers(cursor):
            _ignore_foreign_keys(cursor)
            for table in sorted(set(tables) - set(FILLED)):
                cursor.execute(f'DELETE FROM "{table}"')
            filled = self._filled[_name()]
            if _rows() != filled:
                _write(cursor, filled)
        ContentType.objects.clear_cache()


@contextmanager
def without_triggers(cursor: Any) -> Iterator[None]:
    """As who owns the database may change it. For use within a transaction."""
    if connection.vendor != "sqlite":
        cursor.execute("SET LOCAL session_replication_role = replica")
        yield
        cursor.execute("SET LOCAL session_replication_role = origin")
        return
    cursor.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'")
    triggers = cursor.fetchall()
    for name, _ in triggers:
        cursor.execute(f'DROP TRIGGER "{name}"')
    yield
    for _, statement in triggers:
        cursor.execute(statement)


def _name() -> str:
    return str(connection.settings_dict["NAME"])


def _rows() -> Rows:
    with connection.cursor() as cursor:
        return {table: _rows_of(cursor, table) for table in FILLED}


def _rows_of(cursor: Any, table: str) -> list[tuple[Any, ...]]:
    cursor.execute(f'SELECT * FROM "{table}" ORDER BY id')
    return [tuple(row) for row in cursor.fetchall()]


def _write(cursor: Any, filled: Rows) -> None:
    for table, rows in filled.items():
        cursor.execute(f'DELETE FROM "{table}"')
        places = ", ".join(["%s"] * len(rows[0]))
        cursor.executemany(f'INSERT INTO "{table}" VALUES ({places})', rows)


def _ignore_foreign_keys(cursor: Any) -> None:
    """Until the end of the transaction. The tables are emptied in no particular order.

    On PostgreSQL, their checks are triggers too.
    """
    if connection.vendor == "sqlite":
        cursor.execute("PRAGMA defer_foreign_keys = ON")
