"""SQLite with one queue of writers per process.

SQLite has one writer at a time and no queue: a thread that finds it busy sleeps and retries, up to 100 ms
later, and newcomers overtake it. Here a thread takes a turn before its transaction begins, or before a
statement that writes outside of one, so threads write in the order in which they came. Between processes
SQLite's own lock still decides.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db import OperationalError
from django.db.backends.sqlite3 import base

from botbottle.database.sqlite.turns import Turns, turns_at

WRITES = ("INSERT", "UPDATE", "DELETE", "REPLACE")
DEFAULT_TIMEOUT = 5.0  # seconds, as in the sqlite3 module


class DatabaseWrapper(base.DatabaseWrapper):
    """A connection that has a turn exactly while it may hold SQLite's write lock.

    Django's stubs omit the methods that are private to its backends.
    """

    transaction_mode: str | None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._turn: Turns | None = None
        self.execute_wrappers.append(self._write_in_turn)

    def _start_transaction_under_autocommit(self) -> None:
        if self.transaction_mode in ("IMMEDIATE", "EXCLUSIVE"):
            self._take_turn()
        try:
            super()._start_transaction_under_autocommit()  # type: ignore[misc]
        finally:
            self._end_turn()

    def _set_autocommit(self, autocommit: bool) -> None:
        """End the turn. Django calls this after each commit and rollback, before the on_commit callbacks."""
        try:
            super()._set_autocommit(autocommit)  # type: ignore[misc]
        finally:
            self._end_turn()

    def _close(self) -> None:
        try:
            super()._close()  # type: ignore[misc]
        finally:
            self._release_turn()

    def _write_in_turn(
        self, execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any
    ) -> Any:
        """Run one statement. A writing one is its own transaction, unless one is open."""
        if not sql.startswith(WRITES) or self._is_in_transaction():
            return execute(sql, params, many, context)
        self._take_turn()
        try:
            return execute(sql, params, many, context)
        finally:
            self._end_turn()

    def _take_turn(self) -> None:
        if self.is_in_memory_db():  # no other thread has it
            return
        turns = turns_at(str(self.settings_dict["NAME"]))
        if not turns.acquire(self.settings_dict["OPTIONS"].get("timeout", DEFAULT_TIMEOUT)):
            raise OperationalError("database is locked")
        self._turn = turns

    def _end_turn(self) -> None:
        """Release the turn, unless a transaction is open."""
        if not self._is_in_transaction():
            self._release_turn()

    def _release_turn(self) -> None:
        turn, self._turn = self._turn, None
        if turn is not None:
            turn.release()

    def _is_in_transaction(self) -> bool:
        if self.connection is None or self.closed_in_transaction:
            return False
        return bool(self.connection.in_transaction)
