"""A database that fails at chosen statements, with the errors that the real ones raise."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.db import InterfaceError, OperationalError, connection


def sqlite_error(name: str, text: str) -> OperationalError:
    """As Django raises it."""
    cause = sqlite3.OperationalError(text)
    cause.sqlite_errorname = name
    error = OperationalError(text)
    error.__cause__ = cause
    return error


def locked() -> OperationalError:
    return sqlite_error("SQLITE_BUSY", "database is locked")


def full() -> OperationalError:
    return sqlite_error("SQLITE_FULL", "database or disk is full")


def away() -> OperationalError:
    return OperationalError('connection failed: connection to server on socket "/s" failed: No such file')


def lost() -> InterfaceError:
    return InterfaceError("connection already closed")


@contextmanager
def failing(error: Callable[[], Exception], *, at: str = "") -> Iterator[None]:
    """Statements that contain `at` fail, on this thread's connection."""

    def execute(run: Callable[..., Any], sql: str, *rest: Any) -> Any:
        if at in sql:
            raise error()
        return run(sql, *rest)

    with connection.execute_wrapper(execute):
        yield
