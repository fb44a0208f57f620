"""Holds an SQLite database open while web processes come and go. Without Django.

The process that closes a database as the last one deletes its write-ahead log, and the one that opens it as
the first makes its shared memory anew. On a full disk neither could be made again, and nobody could decide.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path


@contextmanager
def held_open(path: Path) -> Iterator[None]:
    """Nothing is held where there is no such file: the database is another one."""
    if not path.is_file():
        yield
        return
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("SELECT count(*) FROM sqlite_master").fetchone()  # opens what a first look needs
        yield
