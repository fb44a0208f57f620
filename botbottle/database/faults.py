"""Faults of a database that is unreachable, crowded, locked, full or read-only: one sentence per cause.

A program's own errors (an unknown table, a broken constraint) are not faults and stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any

from django.db import DatabaseError, InterfaceError, OperationalError, connection
from django.db.transaction import TransactionManagementError

NOTHING_CHANGED = "Nothing was changed."


class Cause(Enum):
    """A cause as a sentence, and the seconds after which a retry makes sense."""

    UNREACHABLE = "The database cannot be reached.", 5
    CROWDED = "The database has no connection left.", 2
    LOCKED = "The database was locked for too long.", 1
    FULL = "The disk of the database is full.", 30
    READ_ONLY = "The database is read-only.", 30
    BROKEN = "The database cannot read or write its files.", 30

    def __init__(self, sentence: str, retry_after: int) -> None:
        self.sentence = sentence
        self.retry_after = retry_after


@dataclass(frozen=True)
class Fault:
    """A fault. `is_lost`: the connection ended during the work, so a commit may have arrived or not."""

    cause: Cause
    is_lost: bool

    def message(self, changes: Changes | None, *, unknown: str) -> str:
        """The reason and the outcome of the request; `unknown` says how to find out an unclear outcome."""
        nothing = changes is not None and not changes.possible(self)
        return f"{self.cause.sentence} {NOTHING_CHANGED if nothing else unknown}"


_SQLITE = {
    "SQLITE_BUSY": Cause.LOCKED,
    "SQLITE_LOCKED": Cause.LOCKED,
    "SQLITE_FULL": Cause.FULL,
    "SQLITE_READONLY": Cause.READ_ONLY,
    "SQLITE_CANTOPEN": Cause.UNREACHABLE,
    "SQLITE_IOERR_SHMSIZE": Cause.FULL,  # the write-ahead log has no room left
    "SQLITE_IOERR": Cause.BROKEN,
    "SQLITE_NOTADB": Cause.BROKEN,
    "SQLITE_CORRUPT": Cause.BROKEN,
}
_POSTGRESQL = {  # by SQLSTATE, or its prefix
    "53100": Cause.FULL,
    "53300": Cause.CROWDED,
    "25006": Cause.READ_ONLY,
    "55P03": Cause.LOCKED,
    "57014": Cause.LOCKED,  # cancelled by a time limit
    "40": Cause.LOCKED,  # deadlocks and failed serializations
    "57P": Cause.UNREACHABLE,  # shut down, or not started yet
    "58": Cause.BROKEN,
    "08": Cause.UNREACHABLE,
}
_REFUSED = ("connection failed", "connection is bad", "connection timeout expired")  # there was none yet
_CROWDED = ("too many clients", "too many connections", "remaining connection slots")


def fault_of(error: BaseException | None) -> Fault | None:
    """The fault behind an error, or None for another kind of error."""
    if isinstance(error, TransactionManagementError) and error.__cause__ is not None:
        return fault_of(error.__cause__)
    if not isinstance(error, DatabaseError | InterfaceError):
        return None
    name = getattr(error.__cause__, "sqlite_errorname", None)
    if name is not None:
        cause = _SQLITE.get(name) or _SQLITE.get("_".join(name.split("_")[:2]))
        return None if cause is None else Fault(cause, is_lost=False)
    return _postgresql(error, getattr(error.__cause__, "sqlstate", None))


def _postgresql(error: DatabaseError | InterfaceError, state: str | None) -> Fault | None:
    if state is not None:
        known = (_POSTGRESQL.get(state[:length]) for length in (5, 3, 2))
        cause = next(filter(None, known), None)
        return None if cause is None else Fault(cause, is_lost=cause is Cause.UNREACHABLE)
    if not isinstance(error, OperationalError | InterfaceError):
        return None
    text = str(error).lower()
    if any(words in text for words in _CROWDED):
        return Fault(Cause.CROWDED, is_lost=False)
    return Fault(Cause.UNREACHABLE, is_lost=not text.startswith(_REFUSED))


class Changes:
    """What a thread's work has written to the database."""

    def __init__(self) -> None:
        self.wrote = self.committed = False

    def possible(self, fault: Fault) -> bool:
        """False only if the work, ended by this fault, certainly changed nothing."""
        return self.committed or (self.wrote and fault.is_lost)

    def _note(self) -> None:
        self.wrote = True
        if connection.in_atomic_block:
            connection.on_commit(self._commit)
        else:
            self._commit()

    def _commit(self) -> None:
        self.committed = True

    def __call__(
        self, execute: Callable[..., Any], sql: object, params: Any, many: bool, context: Mapping[str, Any]
    ) -> Any:
        """Run one statement, as Django's execute wrappers do."""
        result = execute(sql, params, many, context)
        verb = str(sql).lstrip()[:6].upper()
        # SQLite does not count the rows of an INSERT that returns them.
        if verb == "INSERT" or (verb in ("UPDATE", "DELETE") and context["cursor"].rowcount):
            self._note()
        return result


@contextmanager
def watched_changes() -> Iterator[Changes]:
    """Record what this thread changes within the block."""
    changes = Changes()
    with connection.execute_wrapper(changes):
        yield changes
