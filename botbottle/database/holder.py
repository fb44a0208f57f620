"""Keeps an SQLite database open while web processes come and go. Without Django.

The last process that closes a database deletes its write-ahead log, and the first that opens it creates its
shared memory. On a full disk neither could be created again, and no operator could decide.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path


@contextmanager
def keep_open(path: Path) -> Iterator[None]:
    """Keep the database open within the block. Does nothing where the file does not exist."""
    if not path.is_file():
        yield
        return
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute(
            "SELECT count(*) FROM sqlite_master"
        ).fetchone()  # opens the files that a first read needs
        yield
