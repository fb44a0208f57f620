"""Database faults: what counts as one, what is said of it, and how often it is logged."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from django.db import (
    DatabaseError,
    IntegrityError,
    InterfaceError,
    InternalError,
    OperationalError,
    connection,
    transaction,
)
from django.db.transaction import TransactionManagementError
from django.db.utils import ConnectionHandler

from botbottle.database.fault_log import SECONDS, OneLineAMinute
from botbottle.database.faults import Cause, Fault, fault_of, watched_changes
from botbottle.models import Bottle


@pytest.fixture
def own_database(tmp_path: Path, django_db_blocker: Any) -> Iterator[Any]:
    """A SQLite database of its own, with one table, through Django."""
    path = tmp_path / "own.sqlite3"
    entry = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(path), "OPTIONS": {"timeout": 0.01}}
    own = ConnectionHandler({"default": entry})["default"]
    with django_db_blocker.unblock():
        with own.cursor() as cursor:
            cursor.execute("create table kept (text)")
        yield own
        own.close()


def run(database: Any, *statements: str) -> BaseException | None:
    try:
        with database.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
    except DatabaseError as error:
        return error
    return None


def cause_of(error: BaseException | None) -> Cause | None:
    fault = fault_of(error)
    return fault.cause if fault else None


def test_a_lock_that_another_connection_keeps_is_a_fault(own_database: Any) -> None:
    with closing(sqlite3.connect(own_database.settings_dict["NAME"])) as other:
        other.execute("begin immediate")
        assert cause_of(run(own_database, "insert into kept values (1)")) is Cause.LOCKED


def test_a_file_that_cannot_grow_is_a_full_disk(own_database: Any) -> None:
    filled = run(own_database, "pragma max_page_count = 2", "insert into kept values (zeroblob(99999))")
    assert cause_of(filled) is Cause.FULL


def test_a_database_that_may_not_be_written_is_read_only(own_database: Any) -> None:
    refused = run(own_database, "pragma query_only = 1", "insert into kept values (1)")
    assert cause_of(refused) is Cause.READ_ONLY


def test_a_file_that_cannot_be_opened_is_unreachable(own_database: Any, tmp_path: Path) -> None:
    entry = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "absent" / "file")}
    assert cause_of(run(ConnectionHandler({"default": entry})["default"], "select 1")) is Cause.UNREACHABLE


def test_an_error_of_the_program_is_no_fault(own_database: Any) -> None:
    assert fault_of(run(own_database, "select * from unknown")) is None
    assert fault_of(IntegrityError("UNIQUE constraint failed")) is None
    assert fault_of(ValueError("locked")) is None
    assert fault_of(None) is None


def postgresql(kind: type[Exception], text: str, state: str | None = None) -> Exception:
    """As psycopg raises it and Django wraps it."""
    error = kind(text)
    error.__cause__ = Exception(text)
    error.__cause__.sqlstate = state  # type: ignore[attr-defined]
    return error


REFUSED = 'connection failed: connection to server on socket "/s/.s.PGSQL.5432" failed: No such file'
POSTGRESQL = [
    (postgresql(OperationalError, REFUSED), Fault(Cause.UNREACHABLE, is_lost=False)),
    (
        postgresql(OperationalError, "connection failed: FATAL:  sorry, too many clients already"),
        Fault(Cause.CROWDED, is_lost=False),
    ),
    (postgresql(OperationalError, "the connection is closed"), Fault(Cause.UNREACHABLE, is_lost=True)),
    (
        postgresql(OperationalError, "terminating connection due to administrator command", "57P01"),
        Fault(Cause.UNREACHABLE, is_lost=True),
    ),
    (InterfaceError("connection already closed"), Fault(Cause.UNREACHABLE, is_lost=True)),
    (postgresql(OperationalError, "too many connections", "53300"), Fault(Cause.CROWDED, is_lost=False)),
    (postgresql(OperationalError, "could not extend file", "53100"), Fault(Cause.FULL, is_lost=False)),
    (postgresql(InternalError, "read-only transaction", "25006"), Fault(Cause.READ_ONLY, is_lost=False)),
    (postgresql(OperationalError, "lock not available", "55P03"), Fault(Cause.LOCKED, is_lost=False)),
    (postgresql(OperationalError, "deadlock detected", "40P01"), Fault(Cause.LOCKED, is_lost=False)),
    (postgresql(OperationalError, "could not read block", "58030"), Fault(Cause.BROKEN, is_lost=False)),
    (postgresql(InternalError, "current transaction is aborted", "25P02"), None),
]


def test_every_fault_of_postgresql_has_its_cause() -> None:
    assert [error for error, fault in POSTGRESQL if fault_of(error) != fault] == []


def test_a_transaction_that_a_fault_broke_has_its_cause() -> None:
    broken = TransactionManagementError("An error occurred in the current transaction.")
    assert fault_of(broken) is None
    broken.__cause__ = postgresql(OperationalError, REFUSED)
    assert cause_of(broken) is Cause.UNREACHABLE


LOCKED, LOST = Fault(Cause.LOCKED, is_lost=False), Fault(Cause.UNREACHABLE, is_lost=True)


@pytest.mark.django_db(transaction=True)
def test_what_was_rolled_back_changed_nothing_unless_the_commit_may_have_arrived() -> None:
    with watched_changes() as changes:
        assert not changes.possible(LOST)
        with pytest.raises(OperationalError), transaction.atomic():
            Bottle.objects.create(slug="written")
            raise OperationalError
        assert not changes.possible(LOCKED)
        assert changes.possible(LOST)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("at_once", [True, False])
def test_what_was_committed_is_a_change_whatever_comes_after(at_once: bool) -> None:
    before = list(connection.execute_wrappers)
    with watched_changes() as changes:
        if at_once:
            Bottle.objects.create(slug="written")
        else:
            with transaction.atomic():
                Bottle.objects.create(slug="written")
        assert changes.possible(LOCKED)
        assert LOCKED.message(changes, unknown="Look.") == "The database was locked for too long. Look."
    assert connection.execute_wrappers == before


def test_of_work_that_nobody_watched_nothing_is_promised() -> None:
    assert LOCKED.message(None, unknown="Look.") == "The database was locked for too long. Look."


# --- the log


def record(error: BaseException | None, message: str = "A request\nfailed.") -> logging.LogRecord:
    info = (type(error), error, None) if error else None
    return logging.LogRecord("supervise.mcp.views", logging.ERROR, __file__, 1, message, None, info)


def test_a_fault_is_one_line_a_minute_for_each_cause() -> None:
    now = 1000.0
    lines = OneLineAMinute(lambda: now)
    away, full = postgresql(OperationalError, "no\nroute 100%"), postgresql(OperationalError, "", "53100")
    said = [record(away), record(away), record(full), record(away)]
    assert [lines.filter(one) for one in said] == [True, False, True, False]
    assert said[0].getMessage() == "A request failed. The database cannot be reached. (no route 100%)"
    assert said[0].exc_info is None
    now += SECONDS
    later = record(away)
    assert lines.filter(later)
    assert later.getMessage().endswith(" 2 more of these in the last minutes.")


def test_other_errors_keep_their_traceback() -> None:
    lines = OneLineAMinute()
    for error in (ValueError("a bug"), IntegrityError("twice"), None):
        other = record(error)
        assert lines.filter(other)
        assert other.getMessage() == "A request\nfailed."
        assert bool(other.exc_info) is bool(error)


def test_what_is_written_to_stderr_goes_through_the_filter(settings: Any) -> None:
    assert "database_faults" in settings.LOGGING["handlers"]["stderr"]["filters"]
